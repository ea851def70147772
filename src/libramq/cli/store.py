"""The store command: checks, copies and converts message directories without their broker."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.lazy import output
from libramq.errors import StoreError

if TYPE_CHECKING:
    from libramq.message.record import RecordHead
    from libramq.store.check import StoreReport
    from libramq.store.log.log_scan import Damage

#: The exit code of a check that found damage; 2 means that the check failed.
EXIT_DAMAGED: Final = 1

_CommitLog = Annotated[
    Path | None, typer.Option("--commit-log", help="The broker's storePathCommitLog, if it has one.")
]

app = typer.Typer(help="Check, copy or convert a broker's files.", no_args_is_help=True)


@app.command(no_args_is_help=True)
def check(
    directory: Annotated[Path, typer.Argument(help="The broker's storePathRootDir, or a copy of it.")],
    dump: Annotated[
        bool, typer.Option("--dump", help="Print every record first, as one line of JSON each.")
    ] = False,
    commit_log: _CommitLog = None,
    json: options.Json = False,
) -> None:
    """Check every record and every consume queue unit, and show the repairs of the next start, without
    changing anything. Exit code 1: damage."""
    from libramq.filesystem import LocalFileSystem
    from libramq.store.check import check_store

    seen = _print_record if dump else lambda _: None
    report = check_store(directory, LocalFileSystem(), seen, commit_log=commit_log)
    if json:
        output.print_json(_as_json(report))
    else:
        for name, text in _lines(report):
            print(f"{name:<11} {text}")
    if report.is_damaged:
        raise typer.Exit(EXIT_DAMAGED)


@app.command(no_args_is_help=True)
def copy(
    directory: Annotated[Path, typer.Argument(help="The storePathRootDir of a broker, running or stopped.")],
    to: Annotated[Path, typer.Argument(help="A new or empty directory.")],
    commit_log: _CommitLog = None,
    json: options.Json = False,
) -> None:
    """Copy a broker's messages, queues and tables while it runs. A broker started on the copy has everything
    that was acknowledged before the copy began."""
    from libramq.filesystem import LocalFileSystem
    from libramq.store.copying import copy_store

    source, target = _elsewhere(directory, to)
    report = copy_store(source, target, LocalFileSystem(), commit_log=commit_log)
    if json:
        output.print_json({output.camel(name): value for name, value in asdict(report).items()})
        return
    state = "closed by its broker" if report.is_closed else "not closed: its broker is running, or was killed"
    begin = "nothing" if report.is_closed else f"the log from {report.recovered_from:,} on"
    print(f"store       {state}")
    print(f"commit log  offsets {report.log_start:,} to {report.log_end:,}")
    print(f"queues      {report.queue_count:,}; the first start on the copy reads {begin}")
    print(f"tables      {', '.join(report.tables) or 'none'}")
    print(f"result      copied to {to}")


@app.command(no_args_is_help=True)
def unbatch(
    directory: Annotated[Path, typer.Argument(help="The storePathRootDir of a stopped Apache broker.")],
    to: Annotated[Path, typer.Argument(help="A new or empty directory.")],
    commit_log: _CommitLog = None,
    json: options.Json = False,
) -> None:
    """Copy the directory of an Apache broker with queue.type=BatchCQ topics to one without: each message
    gets its own record, and keeps its offset in its queue."""
    from libramq.clock import SystemClock
    from libramq.filesystem import LocalFileSystem
    from libramq.store.unbatching import unbatch_store

    source, target = _elsewhere(directory, to)
    report = unbatch_store(source, target, LocalFileSystem(), SystemClock(), commit_log=commit_log)
    if json:
        output.print_json(asdict(report))
        return
    print(f"topics      {', '.join(report.topics) or 'none; deleted ones have left batch queues'}")
    print(f"commit log  {report.read:,} records, {report.batches:,} of them batches; now {report.written:,}")
    print(f"result      copied to {to}; start LibraMQ's broker on it")


def _elsewhere(directory: Path, to: Path) -> tuple[Path, Path]:
    """Return both paths with links resolved; raises StoreError for a copy of a directory into itself."""
    source, target = directory.resolve(), to.resolve()
    if source == target or source in target.parents:
        raise StoreError(f"{to} is inside {directory}; copy to a directory elsewhere")
    return source, target


def _print_record(found: "RecordHead | Damage") -> None:
    from libramq.message.properties import decode_properties
    from libramq.store.log.log_scan import Damage

    if isinstance(found, Damage):
        record: dict[str, Any] = {"damage": found.reason, "physicalOffset": found.offset}
        record["size"] = found.end - found.offset
    else:
        record = {
            "physicalOffset": found.physical_offset,
            "size": found.size,
            "topic": found.topic,
            "queueId": found.queue_id,
            "queueOffset": found.queue_offset,
            "storeTimestamp": found.store_timestamp_ms,
            "sysFlag": found.sys_flag,
            "bodyBytes": found.body_end - found.body_start,
            "properties": decode_properties(found.properties),
        }
    output.print_json(record, indent=None)


def _lines(report: "StoreReport") -> list[tuple[str, str]]:
    """Return the findings of a check, one line each."""
    queues = report.queues
    lines = [
        ("store", report.state),
        (
            "commit log",
            f"{report.file_count:,} files, offsets {report.log_start:,} to {report.log_end:,}, "
            f"{report.record_count:,} records, {report.deleted_count:,} of them deleted",
        ),
        (
            "queues",
            f"{queues.queue_count:,} with {queues.unit_count:,} units; {queues.missing_count:,} are missing, "
            f"{queues.wrong_count:,} lead elsewhere, {queues.stray_count:,} lead to no record",
        ),
        (
            "next start",
            f"reads {report.recovered_record_count:,} records from {report.recovered_from:,} on, builds "
            f"{report.recovered_unit_count:,} units, removes {report.cut_unit_count:,}, cuts off "
            f"{report.cut_bytes:,} bytes after the log's end",
        ),
    ]
    lines += [("damage", _of_damage(damage)) for damage in report.damages]
    lines += [("damage", text) for text in queues.unreadable]
    if report.lost_bytes:
        lost = f"the log begins at {report.log_start:,}; {report.lost_bytes:,} earlier bytes are missing"
        lines.append(("damage", lost))
    if report.log_end < report.known_end:
        lost = f"the log ends at {report.log_end:,}, and was on the disk up to {report.known_end:,}"
        lines.append(("damage", lost))
    lines.append(("result", "damaged; see docs/damage.md" if report.is_damaged else "no damage"))
    return lines


def _of_damage(damage: "Damage") -> str:
    what = "one record" if damage.is_proven else "an unknown number of records"
    return f"{damage.end - damage.offset:,} bytes at {damage.offset:,}, {what}: {damage.reason}"


def _as_json(report: "StoreReport") -> dict[str, Any]:
    value = asdict(report)
    value["damages"] = [
        {"offset": each.offset, "end": each.end, "reason": each.reason, "isOneRecord": each.is_proven}
        for each in report.damages
    ]
    return {**{output.camel(name): part for name, part in value.items()}, "isDamaged": report.is_damaged} | {
        "queues": {output.camel(name): part for name, part in value["queues"].items()}
    }
