"""The invariant: a named rule, which receives all facts and reports its violation."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, NoReturn

from libramq.clock import MonotonicMs
from libramq.testing.history import Violation, Watcher

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class Invariant(Watcher):
    """One rule of one simulation."""

    #: The text printed on a violation.
    name: ClassVar[str]
    #: How soon after the last fault, or the last progress since, `is_met` must hold.
    within_ms: ClassVar[int] = 0

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        #: When progress was last made: while there is progress, the deadline is extended.
        self.progressed_ms = MonotonicMs(0)

    def step(self) -> None:
        """Check the cluster after a step."""

    def unmet(self) -> Iterable[str]:
        """Check liveness: yield what keeps the expected state from being reached after the last fault."""
        return ()

    def is_met(self) -> bool:
        """Return whether the expected state is reached."""
        return next(iter(self.unmet()), None) is None

    def finish(self) -> None:
        """Check the cluster at the end."""
        for what in self.unmet():
            self.broken(what)

    def broken(self, what: str) -> NoReturn:
        """Report a violation."""
        raise Violation(self.name, what)
