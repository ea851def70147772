"""The peer link: what one other broker of the cluster is still to be told.

    owes_members    as an edge: of all our groups that live there; else of those in `changed`
    owes_full_state       as a coordinator: all our grants and lists; else each is told when it is made

Members are told in beats, one at a time: at once when something changed, else once a second, so that the
broker knows that we are there and the connection stays. Who does not answer, or was lost, is owed everything.
"""

from dataclasses import dataclass, field
from typing import Final

from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours.
BEAT_MS: Final = 1_000
#: Ours: a broker that is not there is tried again so soon; it may only have restarted.
RETRY_MS: Final = 200
#: Ours: who ended is gone from the name servers, and no peer any more, before it was tried so often.
FAILURES_UNTIL_WARNING: Final = 10


@dataclass(slots=True)
class PeerLink:
    """One other broker. is_linked: it answered our last request. due_ms: of the next beat (monotonic)."""

    name: str
    address: str
    due_ms: MonotonicMs
    is_linked: bool = False
    is_asking: bool = False
    owes_members: bool = True
    owes_full_state: bool = True
    changed: dict[str, None] = field(default_factory=dict)
    failures: int = 0

    def beat_by(self, due_ms: MonotonicMs) -> None:
        """Beat at that time at the latest."""
        self.due_ms = min(self.due_ms, due_ms)

    def begin(self) -> list[str] | None:
        """A beat goes out: the groups to tell of; None: all."""
        changed = None if self.owes_members else list(self.changed)
        self.changed.clear()
        self.owes_members, self.is_asking = False, True
        return changed

    def answered(self, *, knows_all: bool, now_ms: MonotonicMs) -> None:
        """The beat was answered; knows_all: it had heard of all our groups."""
        if not self.is_linked:
            log.info("broker linked", broker=self.name, address=self.address)
        self.is_linked, self.is_asking, self.failures = True, False, 0
        self.owes_members = self.owes_members or not knows_all
        self.due_ms = now_ms if self.owes_members or self.changed else now_ms + BEAT_MS

    def failed(self, reason: object, *, now_ms: MonotonicMs) -> None:
        """A request failed, or the connection ended."""
        self.failures += 1
        if self.failures == FAILURES_UNTIL_WARNING:
            log.warning("broker not reachable", broker=self.name, address=self.address, reason=str(reason))
        self.is_linked = False
        self.owes_members = self.owes_full_state = True
        self.due_ms = now_ms + RETRY_MS
