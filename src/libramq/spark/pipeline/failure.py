"""Failures of Spark in one line: the error itself, out of the stack traces of two languages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from libramq.errors import LibraError

# The last line of a Python traceback of ours, which Spark passes on inside its own text.
_OURS: Final = re.compile(r"^libramq(?:\.\w+)+: (.+)$", re.MULTILINE)
# That of any, without its module; frames are indented.
_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:\w+\.)*(\S.*)")

#: How Py4J names a method of Java's that failed: "… o69.start."
_CALL: Final = "An error occurred while calling"
_CAUSE: Final = "Caused by: "


# How delta-rs begins a cause, on a line of its own and in a colour.
_DELTA_CAUSE: Final = re.compile(r"\s*\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)? *")


class PipelineFailed(LibraError):
    """A run ended early; the next run continues where it stopped."""


def with_cause(text: str) -> str:
    """Return delta-rs's message with its causes in the first line, which names nothing without them."""
    return _DELTA_CAUSE.sub(": ", text)


@contextmanager
def failures_in_one_line(pipeline: str, *, then: str = "run it again and it continues") -> Iterator[None]:
    """Raise PipelineFailed for Spark's exceptions; then: what the user can do."""
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
            del lines[0]  # Its cause follows, and the cause of that: a full disk, of failed tasks.
            causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
            lines[0] = ": ".join([lines[0].rstrip("."), *causes[-1:]])
        what = ours[-1] if ours else next(iter(lines), type(error).__name__)
        raise PipelineFailed(f"{pipeline} ended early: {what.rstrip('.')}; {then}") from error
