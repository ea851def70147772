"""The checkpoint: Spark's directory for one query, bound to one table and locked by one run.

    metadata            Spark's: the query's id
    offsets/N           Spark's: where batch N ends, written before the batch is read
    commits/N           Spark's: batch N is in the table
    pipeline.json       ours: the table and its layout
    pipeline.lock       ours: names the current run, which holds the lock until it ends

The checkpoint numbers a table's batches. Another checkpoint would begin again with batch 0: its first batches
would be mistaken for existing ones, or every message would be written twice. It is therefore refused.
"""

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from libramq.errors import ConfigError
from libramq.filesystem import try_lock
from libramq.spark.reading.positions import Positions, StreamOffset

BINDING: Final = "pipeline.json"
LOCK: Final = "pipeline.lock"
COLUMNS: Final = "columns"
#: Layout keys that checkpoints of version 0.1 lack.
DEFAULTS: Final[Mapping[str, str]] = {"partitioned_by": "date"}


class Checkpoint:
    """One checkpoint directory, which need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check(self, binding: Mapping[str, str], *, table_has_rows: bool) -> None:
        """Raise ConfigError if this checkpoint does not belong to the table; change nothing."""
        bound = self._bound()
        if bound is None:
            if table_has_rows:
                raise ConfigError(
                    f"the table {binding['table']} was not written with the checkpoint {self.directory}: its "
                    "messages would come twice; give its own checkpoint, or another table"
                )
            return
        for name, value in binding.items():
            if (known := bound.get(name, DEFAULTS.get(name))) != value:
                raise ConfigError(
                    f"the checkpoint {self.directory} is that of a table with {name} = {known!r}, "
                    f"not {value!r}; give another checkpoint and table, or take the change back"
                )

    def bind(self, binding: Mapping[str, str], columns: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record this checkpoint's table, unless already recorded, and its columns with their types."""
        bound = self._bound()
        known = {} if bound is None else bound.get(COLUMNS, {})
        if bound is not None and known == {**known, **columns}:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / f".{BINDING}.draft"
        with draft.open("w", encoding="utf-8") as file:
            json.dump({**(bound or binding), COLUMNS: {**known, **columns}}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.directory / BINDING)

    @property
    def is_bound(self) -> bool:
        """Return whether the checkpoint is bound to a table."""
        return self._bound() is not None

    @property
    def owner(self) -> str:
        """Return an id that distinguishes this checkpoint from all others, also on other machines."""
        return hashlib.sha256(f"{socket.gethostname()}:{self.directory}".encode()).hexdigest()[:16]

    def columns(self) -> Mapping[str, str]:
        """Return the table's columns so far, and their types; empty before the first run."""
        known: Mapping[str, str] = (self._bound() or {}).get(COLUMNS, {})
        return known

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the checkpoint for this run; ConfigError names the run that holds it.

        Two runs, from an overlapping cron job or a second shell, would process the same batches.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOCK).open("a+", encoding="utf-8") as file:
            if not try_lock(file.fileno()):
                file.seek(0)
                raise ConfigError(
                    f"another run has the checkpoint {self.directory} ({file.read().strip()}); wait until it"
                    " has ended, or end it"
                )
            file.truncate(0)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}\n")
            file.flush()
            yield

    def query_id(self) -> str:
        """Return the id that Spark gave the query; it exists once the query has started."""
        found: str = json.loads((self.directory / "metadata").read_text(encoding="utf-8"))["id"]
        return found

    def positions(self) -> Positions | None:
        """Return where the last batch in the table ended; None before the first."""
        commits = (self.directory / "commits").glob("*")
        done = [int(path.name) for path in commits if path.name.isdecimal()]
        if not done:
            return None
        text = (self.directory / "offsets" / str(max(done))).read_text(encoding="utf-8")
        return StreamOffset.decode(json.loads(text.rstrip("\n").rpartition("\n")[2])).positions

    def _bound(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.directory / BINDING).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found
