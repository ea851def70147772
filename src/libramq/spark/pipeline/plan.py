"""The plan: what a pipeline would read and write, as values for printing. Also its progress, and its failure
in one line: the error itself, extracted from the stack traces of two languages.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from libramq.errors import LibraError
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

    nothing_to_do: why a run would change nothing, so the caller need not start Spark; else empty.
    """

    pipeline: str
    reads: Sequence[Range]
    tables: Sequence[TablePlan]
    remarks: Sequence[str] = field(default_factory=tuple)
    nothing_to_do: str = ""

    @property
    def message_count(self) -> int:
        """Return how many messages are still to be read."""
        return sum(part.row_count for part in self.reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run. total: None for a continuous run."""

    done: int
    total: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run: a sentence, and the files a person may want to open."""

    sentence: str
    files: Sequence[str] = ()


OnProgress = Callable[[Progress], None]


# The last line of a traceback with a LibraMQ exception, which Spark embeds in its own message.
_OURS: Final = re.compile(r"^libramq(?:\.\w+)+: (.+)$", re.MULTILINE)
# The last line of any Python traceback, without the exception's module; frames are indented.
_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:\w+\.)*(\S.*)")

#: The start of Py4J's message for a failed Java method: "… o69.start."
_CALL: Final = "An error occurred while calling"
_CAUSE: Final = "Caused by: "


# The start of a cause in delta-rs's messages, on a separate line and coloured.
_DELTA_CAUSE: Final = re.compile(r"\s*\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)? *")


class PipelineFailed(LibraError):
    """A run ended early; the next run continues where it stopped."""


def with_cause(text: str) -> str:
    """Return delta-rs's message with its causes joined to the first line, which alone is too vague."""
    return _DELTA_CAUSE.sub(": ", text)


@contextmanager
def failures_in_one_line(pipeline: str, *, then: str = "run it again and it continues") -> Iterator[None]:
    """Turn Spark's exceptions into PipelineFailed. then: what the user can do."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        ours, raised = _OURS.findall(text), list(_PYTHON.finditer(text))
        if raised:
            text = with_cause(text[raised[-1].start(1) :])
        lines = [line.strip(": \t") for line in text.splitlines() if line.strip(": \t")]
        if len(lines) > 1 and _CALL in lines[0]:
            del lines[0]  # The causes follow, the root cause last: failed tasks, a full disk.
            causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
            lines[0] = ": ".join([lines[0].rstrip("."), *causes[-1:]])
        what = ours[-1] if ours else next(iter(lines), type(error).__name__)
        raise PipelineFailed(f"{pipeline} ended early: {what.rstrip('.')}; {then}") from error
