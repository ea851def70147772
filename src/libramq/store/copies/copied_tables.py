"""The copied tables: the files of `config`, each with its journals, as they were at one moment.

    NAME.json, and what was changed since: NAME.json.journal.N, or NAME.journal.N for committed offsets

A broker writes a table whole and then removes the journals whose changes are in it. So a table and journals
belong together if the table is the same before and after the journals were read, and none of them went.
"""

from pathlib import Path
from typing import Final

from libramq.errors import StoreError
from libramq.filesystem import FileSystem

#: Copied after the log: a message in the copy has its topic there.
TOPICS: Final = "topics"
#: Copied in this order, then the others: offsets commit no message that the copy lacks, and a coordinator
#: knows each epoch that a fence does.
FIRST: Final = (
    "consumerOffset", "lmqConsumerOffset", "delayOffset", "groupFences", "groups", "subscriptionGroup",
)  # fmt: skip
#: Ours: a table is written at most twice a second, and read in milliseconds.
ATTEMPTS_MAX: Final = 20
_JOURNAL: Final = ".journal."


def table_names(filesystem: FileSystem, directory: Path) -> list[str]:
    """Return the names of the tables, all but TOPICS, in the order in which they are to be copied."""
    found = {_stem(name) for name in filesystem.listdir(directory) if _stem(name)} - {"", TOPICS}
    return [name for name in FIRST if name in found] + sorted(found - set(FIRST))


def read_table(filesystem: FileSystem, directory: Path, stem: str) -> dict[str, bytes]:
    """Return the content of a table's files by name; none if there is no such table."""
    for _ in range(ATTEMPTS_MAX):
        try:
            before = _read(filesystem, directory / f"{stem}.json")
            journals = {
                name: _read_existing(filesystem, directory / name)
                for name in filesystem.listdir(directory)
                if _stem(name) == stem and _JOURNAL in name
            }
        except FileNotFoundError:
            continue
        if _read(filesystem, directory / f"{stem}.json") == before:
            return journals if before is None else {f"{stem}.json": before, **journals}
    raise StoreError(f"{directory / stem}.json changes faster than it can be read; copy again")


def _stem(name: str) -> str:
    """Return the name of the table that a file belongs to; empty for backups and files being written."""
    if _JOURNAL in name:
        return name.partition(_JOURNAL)[0].removesuffix(".json")
    return name.removesuffix(".json") if name.endswith(".json") else ""


def _read(filesystem: FileSystem, path: Path) -> bytes | None:
    try:
        return _read_existing(filesystem, path)
    except FileNotFoundError:
        return None


def _read_existing(filesystem: FileSystem, path: Path) -> bytes:
    file = filesystem.open(path)
    try:
        return filesystem.pread(file, filesystem.file_size(file), 0)
    finally:
        filesystem.close(file)
