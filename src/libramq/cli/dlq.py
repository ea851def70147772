"""The dlq commands: list, show, export and replay a group's dead letters."""

import contextlib
import json as json_text
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.lazy import dead_letters, groups, message_row, output
from libramq.cli.printable import printable, printable_json, time_text
from libramq.errors import ConfigError, LibraError, counted

if TYPE_CHECKING:
    from libramq.admin.dead_letters import DeadLetter, DeadLetters

COLUMNS: Final = ("died", "message id", "topic", "attempts", "keys", "error")
#: Ours: a list short enough to read.
LISTED: Final = 50
#: Ours: messages a second that a group can handle in addition to its other ones.
RATE: Final = 1_000
#: How often progress is printed.
PROGRESS_SECONDS: Final = 1.0
PRODUCER_GROUP: Final = "LIBRA_DLQ_REPLAY"

app = typer.Typer(help="Look at a group's dead letters, and send them again.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Message ids, as `libra dlq list` prints them.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        help="Only those that died at or after a time: 2026-05-01T08:30, or 10m for ten minutes ago.",
    ),
]


@app.command("list", no_args_is_help=True)
def list_(
    group: options.Group,
    namesrv: options.Namesrv = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, counted from the newest.")] = LISTED,
    json: options.Json = False,
) -> None:
    """List a group's newest dead letters, with attempts and errors."""
    with _dead_letters(namesrv, group) as letters:
        count = letters.count()
        found = letters.newest(limit)
    if json:
        output.print_json([_row(letter) for letter in found])
    elif not found:
        print(f"group {group} has no dead letters")
    else:
        output.print_table(COLUMNS, map(_cells, found))
        if count > len(found):
            print(f"the newest {len(found)} of {count:,}; --limit shows more")


@app.command(no_args_is_help=True)
def show(
    group: options.Group,
    ids: Annotated[list[str], typer.Argument(help="Message ids, as `libra dlq list` prints them.")],
    namesrv: options.Namesrv = None,
) -> None:
    """Print dead letters with their bodies and properties, as JSON."""
    with _dead_letters(namesrv, group) as letters:
        found = list(letters.read(ids=set(ids)))
    _refuse_unknown(group, set(ids), found)
    output.print_json([_row(letter, is_whole=True) for letter in found])


@app.command(no_args_is_help=True)
def export(
    group: options.Group,
    namesrv: options.Namesrv = None,
    since: Since = None,
    file: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write; standard output by default.")
    ] = None,
) -> None:
    """Write all dead letters with their bodies, each as one line of JSON."""
    count = 0
    with _dead_letters(namesrv, group) as letters:
        lines = (
            json_text.dumps(_row(letter, is_whole=True), ensure_ascii=False)
            for letter in letters.read(since_ms=_since_ms(since))
        )
        if file is None:
            for line in lines:
                print(printable_json(line))
            return
        with _new_file(file) as out:
            for count, line in enumerate(lines, start=1):  # noqa: B007 # The total.
                out.write(f"{line}\n")
    print(f"wrote {counted(count, 'dead letter')} of {group} to {file}")


@app.command(no_args_is_help=True)
def replay(
    group: options.Group,
    ids: Ids = None,
    namesrv: options.Namesrv = None,
    every: Annotated[bool, typer.Option("--all", help="Replay all of them.")] = False,
    since: Since = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", help="Send them to this topic, not to their original ones.")
    ] = None,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Messages a second, at most.")] = RATE,
    json: options.Json = False,
) -> None:
    """Send dead letters again to their original topics, where every group gets them.

    They remain dead letters; the property LIBRA_REPLAYED_FROM of each new message names its dead letter.
    """
    from libramq.sync import Producer

    if [bool(ids), every, since is not None].count(True) != 1:
        raise ConfigError("name the message ids to send again, or give --since or --all")
    wanted = set(ids or ())
    same = ["-g", group, *(("-n", namesrv) if namesrv else ()), *(("-t", topic) if topic else ())]
    progress = _Progress(shlex.join(same), is_by_id=bool(wanted))
    with (
        _dead_letters(namesrv, group) as letters,
        Producer(group=PRODUCER_GROUP, namesrv=options.name_servers(namesrv)) as producer,
    ):
        found: Iterable[DeadLetter] = letters.read(since_ms=_since_ms(since), ids=wanted)
        if wanted:
            found = list(found)
            _refuse_unknown(group, wanted, found)
        try:
            dead_letters.replay(progress.begun(found), producer, topic=topic, rate=rate, sent=progress.sent)
        except (KeyboardInterrupt, LibraError) as error:
            progress.interrupted(error)
            raise
    if json:
        output.print_json({"group": group, "sent": progress.count, "topics": dict(progress.topics(topic))})
    else:
        where = ", ".join(f"{count:,} to {name}" for name, count in sorted(progress.topics(topic).items()))
        print(
            f"sent {counted(progress.count, 'dead letter')} of {group} again"
            + (f": {where}" if where else "")
        )


class _Progress:
    """The messages sent again so far, and a line about them each second on standard error."""

    def __init__(self, arguments: str, *, is_by_id: bool) -> None:
        """arguments: options to repeat in a command that continues; is_by_id: messages were named by id."""
        self._arguments = arguments
        self._is_by_id = is_by_id
        self._current: DeadLetter | None = None
        self._topics: Counter[str] = Counter()
        self._printed_s = time.monotonic()
        self.count = 0

    def begun(self, letters: "Iterable[DeadLetter]") -> "Iterator[DeadLetter]":
        for self._current in letters:
            yield self._current

    def sent(self, letter: "DeadLetter") -> None:
        self.count += 1
        self._topics[letter.topic or ""] += 1
        now_s = time.monotonic()
        if now_s - self._printed_s >= PROGRESS_SECONDS:
            self._printed_s = now_s
            print(f"{self.count:,} sent again", file=sys.stderr, flush=True)

    def topics(self, topic: str | None) -> Counter[str]:
        """Return the counts by topic; topic: the target of all messages, if given."""
        return Counter({topic: self.count}) if topic and self.count else self._topics

    def interrupted(self, error: BaseException) -> None:
        """Add a hint on how to continue to the error."""
        if self._current is not None and self.count:
            letter = self._current
            goes_on = (
                f"{letter.message_id} is the next one to send, in the order of libra dlq list"
                if self._is_by_id
                else f"libra dlq replay {self._arguments} --since {letter.message.store_timestamp_ms} goes on"
            )
            hint = f"{self.count:,} {'was' if self.count == 1 else 'were'} sent again; {goes_on}"
            if isinstance(error, KeyboardInterrupt):
                print(f"libra: {printable(hint)}", file=sys.stderr)
            else:
                error.add_note(f"({hint})")


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[IO[str]]:
    """Create a new file, which is removed if writing fails."""
    try:
        out = path.open("x", encoding="utf-8")
    except FileExistsError:
        what = "is a directory; name a file in it" if path.is_dir() else "exists already; name another file"
        raise ConfigError(f"{path} {what}") from None
    try:
        with out:
            yield out
    except BaseException:
        path.unlink()
        raise


@contextlib.contextmanager
def _dead_letters(namesrv: str | None, group: str) -> "Iterator[DeadLetters]":
    """Open a group's dead letters; raises RouteNotFound if there are none and the group is unknown."""
    from libramq.sync import Admin

    servers = options.name_servers(namesrv)
    with dead_letters.DeadLetters(servers, group) as letters:
        if not letters.count():
            with Admin(namesrv=servers) as admin:
                known = admin.groups()
            if group not in known:
                raise groups.no_group(group, known)
        yield letters


def _since_ms(text: str | None) -> int:
    return 0 if text is None else options.moment_ms(text)


def _refuse_unknown(group: str, wanted: set[str], found: "Iterable[DeadLetter]") -> None:
    ids = wanted - {letter.message_id for letter in found}
    if ids:
        raise ConfigError(
            f"group {group} has no dead letter {', '.join(sorted(ids))}; see libra dlq list -g {group}"
        )


def _cells(letter: "DeadLetter") -> list[str]:
    message = letter.message
    died = time_text(message.store_timestamp_ms)
    keys = " ".join(message.keys)
    attempts = str(message.reconsume_times)
    return [died, letter.message_id, letter.topic or "?", attempts, keys or "–", letter.error or "–"]


def _row(letter: "DeadLetter", *, is_whole: bool = False) -> dict[str, Any]:
    """Return a dead letter as JSON; is_whole: with its properties and body."""
    message = letter.message
    row: dict[str, Any] = {
        "messageId": letter.message_id,
        "originTopic": letter.topic,
        "diedTimestamp": message.store_timestamp_ms,
        "attempts": message.reconsume_times,
        "tags": message.tags,
        "keys": list(message.keys),
        "error": letter.error,
    }
    return message_row.message_row(message) | row if is_whole else row
