"""The peer link: what still has to be sent to one other broker of the cluster.

        full_report_due       as an edge: the members of all its groups; else of those in `changed`
        full_state_due        as a coordinator: all grants and lists; else each is sent when it is made

Members are reported in beats, one at a time: at once after a change, else once a second, which also shows
that we are alive and keeps the connection open. A broker that does not answer, or was lost, is sent
everything again.
"""

from dataclasses import dataclass, field
from typing import Final

from libramq.clock import MonotonicMs
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours.
BEAT_MS: Final = 1_000
#: Ours: how soon an unreachable broker is tried again; it may only have restarted.
RETRY_MS: Final = 200
#: Ours: a broker that has stopped is removed by the name servers, and no peer any more, before this many
#: attempts.
FAILURES_UNTIL_WARNING: Final = 10


@dataclass(slots=True)
class PeerLink:
    """One other broker. is_linked: it answered our last request. due_ms: of the next beat (monotonic)."""

    name: str
    address: str
    due_ms: MonotonicMs
    is_linked: bool = False
    is_asking: bool = False
    full_report_due: bool = True
    full_state_due: bool = True
    changed: dict[str, None] = field(default_factory=dict)
    failures: int = 0

    def beat_by(self, due_ms: MonotonicMs) -> None:
        """Send a heartbeat by that time."""
        self.due_ms = min(self.due_ms, due_ms)

    def begin(self) -> list[str] | None:
        """Begin a beat: return the groups to report; None: all."""
        changed = None if self.full_report_due else list(self.changed)
        self.changed.clear()
        self.full_report_due, self.is_asking = False, True
        return changed

    def answered(self, *, knows_all: bool, now_ms: MonotonicMs) -> None:
        """Handle the answer to a beat; knows_all: the broker has received all our groups."""
        if not self.is_linked:
            log.info("broker linked", broker=self.name, address=self.address)
        self.is_linked, self.is_asking, self.failures = True, False, 0
        self.full_report_due = self.full_report_due or not knows_all
        self.due_ms = now_ms if self.full_report_due or self.changed else now_ms + BEAT_MS

    def failed(self, reason: object, *, now_ms: MonotonicMs) -> None:
        """Handle a failed request, or the end of the connection."""
        self.failures += 1
        if self.failures == FAILURES_UNTIL_WARNING:
            log.warning("broker not reachable", broker=self.name, address=self.address, reason=str(reason))
        self.is_linked = False
        self.full_report_due = self.full_state_due = True
        self.due_ms = now_ms + RETRY_MS
