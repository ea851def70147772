"""The invariant: a rule with a name, which hears of everything and says when it is broken."""

from typing import TYPE_CHECKING, ClassVar, NoReturn

from libramq.clock import MonotonicMs
from libramq.testing.history import Violation, Watcher

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class Invariant(Watcher):
    """One rule of one simulation."""

    #: What is printed when it is broken.
    name: ClassVar[str]
    #: How soon after the last fault, or the last progress since, `is_met` must be true.
    within_ms: ClassVar[int] = 0

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        #: When it last came nearer to being met: as long as it does, it is given time.
        self.progressed_ms = MonotonicMs(0)

    def step(self) -> None:
        """Look at the cluster after a step."""

    def is_met(self) -> bool:
        """Check liveness: return whether the expected state was reached after the last fault."""
        return True

    def finish(self) -> None:
        """Look at the cluster when everything is over."""

    def broken(self, what: str) -> NoReturn:
        """The rule does not hold."""
        raise Violation(self.name, what)
