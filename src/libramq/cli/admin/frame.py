"""The frame of an admin command: its options, a coroutine that asks, and an answer that is shown.

    @command(app, "topicClusterList")
    async def topic_cluster_list(*, topic: options.Topic, admin: Operator) -> Answer:

The parameter `admin` is the option -n, and --json comes last. A command that goes on until Ctrl-C yields its
answers.
"""

import inspect
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from libramq.cli import options
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.admin.operator import Operator as Operator
    from libramq.rpc import admin_calls

    calls = admin_calls
else:
    Operator = Any  # Help must be quick: it loads neither the operator nor the calls.

    class _Calls:
        """The calls, imported when one is made."""

        def __getattr__(self, name: str) -> object:
            return getattr(import_module("libramq.rpc.admin_calls"), name)

    calls = _Calls()


class Answer(NamedTuple):
    """A value for programs, and a function that shows it to people."""

    value: Any
    show: Callable[[], object]


#: A coroutine with one answer, or an asynchronous generator of many.
_Ask = Callable[..., Coroutine[Any, Any, Answer] | AsyncGenerator[Answer, None]]


def command(app: typer.Typer, name: str, *, no_args_is_help: bool = True) -> Callable[[_Ask], _Ask]:
    """Make a function that asks an operator an admin command."""

    def made(ask: _Ask) -> _Ask:
        def run(**arguments: Any) -> None:
            from libramq.cli import running

            running.run(_show(ask, **arguments))

        namesrv = inspect.Parameter(
            "namesrv", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=options.Namesrv
        )
        json = namesrv.replace(name="json", default=False, annotation=options.Json)
        declared = inspect.signature(ask).parameters.values()
        parameters = [*(namesrv if each.name == "admin" else each for each in declared), json]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__doc__ = ask.__doc__
        app.command(name, no_args_is_help=no_args_is_help)(run)
        return ask

    return made


async def _show(ask: _Ask, *, namesrv: str | None, json: bool, **arguments: Any) -> None:
    """Show what a function finds with an operator of the name servers to be used."""
    from libramq.admin import operator
    from libramq.cli import output
    from libramq.cli.access import access

    def show(answer: Answer) -> None:
        if json:
            output.print_json(answer.value)
        else:
            answer.show()

    async with operator.Operator(options.name_servers(namesrv), access()) as admin:
        found = ask(admin=admin, **arguments)
        if isinstance(found, AsyncGenerator):
            async for answer in found:
                show(answer)
            return
        answer = await found
    show(answer)


# Answers.


def done(value: object, *lines: str) -> Answer:
    """Answer that a change is made: with its values, or in sentences."""
    return Answer(value, lambda: print("".join(f"{line}\n" for line in lines), end=""))


def values(found: Mapping[str, Any]) -> Answer:
    """Answer with names and values."""
    return Answer(found, lambda: show_values(found))


def sections(found: Mapping[str, Mapping[str, Any]]) -> Answer:
    """Answer with names and values of several servers."""
    return Answer(found, lambda: show_sections(found))


def rows(found: Sequence[Mapping[str, Any]], headings: Mapping[str, str]) -> Answer:
    """Answer with rows: all of them as JSON, or a table of some values under their headings."""
    return Answer(found, lambda: show_rows(found, headings))


def columns(text: str) -> dict[str, str]:
    """Return the columns of a table: names in rows with their headings, which are the names if none is given.

    `broker, queueId: queue`
    """
    return {name: heading or name for name, _, heading in (each.partition(": ") for each in text.split(", "))}


# What people see.


def show_values(found: Mapping[str, Any]) -> None:
    """Print names and values."""
    from libramq.cli.printable import printable

    for name, value in sorted(found.items()):
        print(f"{name:<32}: {printable(str(value))}")


def show_sections(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print names and values of several servers, each under its address."""
    for address, each in found.items():
        print(f"============{address}============")
        show_values(each)


def show_rows(found: Sequence[Mapping[str, Any]], headings: Mapping[str, str]) -> None:
    """Print a table of some values of rows."""
    from libramq.cli import output

    output.print_table(
        tuple(headings.values()), [[_cell(name, row[name]) for name in headings] for row in found]
    )


def _cell(name: str, value: Any) -> object:
    return time_text(value) if name.endswith("Timestamp") else value


def time_text(timestamp_ms: int) -> str:
    """Return a time in this machine's zone; a dash for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000)) if timestamp_ms else "–"


def plain(value: object) -> Any:
    """Return a document as dicts and lists, under its names on the wire."""
    import msgspec  # Help must be quick.

    return msgspec.to_builtins(value)


# Options that are texts.


def timestamp_of(text: str) -> int:
    """Return the milliseconds since 1970 of a time in one of mqadmin's notations."""
    if text == "now":
        return time.time_ns() // 1_000_000
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        seconds, _, milliseconds = text.rpartition(":")
        moment = datetime.strptime(seconds, "%Y-%m-%d#%H:%M:%S")
        return round(moment.timestamp() * 1_000) + int(milliseconds)
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is no time: now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS") from None


def truth_of(option: str, text: str) -> bool:
    """Return the value of the text `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{option} is true or false, not {text!r}")
    return text.lower() == "true"


def first_number(text: str) -> float:
    """Return the first of the rates over 10 s, 1 min and 10 min."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0
