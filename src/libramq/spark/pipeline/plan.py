"""The plan: what a pipeline would read and write, as values for printing, and its progress."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from libramq.spark.reading.positions import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """One table. columns: names and types as Spark writes them."""

    name: str
    path: str
    format: str
    columns: Mapping[str, str]
    partitioned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run. reads: the messages that are not yet in the tables.

    nothing_to_do: why a run would change nothing, so that Spark need not be started; else empty.
    """

    pipeline: str
    reads: Sequence[Range]
    tables: Sequence[TablePlan]
    remarks: Sequence[str] = field(default_factory=tuple)
    nothing_to_do: str = ""

    @property
    def message_count(self) -> int:
        """Return how many messages wait to be read."""
        return sum(part.row_count for part in self.reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run. total: None if it has no end."""

    done: int
    total: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run: a sentence, and the files a person may want to open."""

    sentence: str
    files: Sequence[str] = ()


OnProgress = Callable[[Progress], None]
