"""The session of a member that only sends heartbeats: how long it may be silent (75 s), when it is probed,
and when it is removed.

    heartbeat, pull, commit ──► seen
        75 s of silence       ──► one probe ──► an answer: seen
                                             └─► "no such group here", or none for 3 s: expired

Upstream waits 120 s and sends no probe (ClientHousekeepingService, BrokerConfig.channelExpiredTimeout).
Members of a coordinated group also have a session at their coordinator.
"""

from typing import Final

import msgspec

from libramq.clock import MonotonicMs

#: The design's: two and a half of the Java client's heartbeat intervals (heartbeatBrokerInterval, 30 s).
SILENCE_MS_MAX: Final = 75_000
#: NettyClientConfig.timeoutMillis: clients wait as long for answers themselves.
ANSWER_MS_MAX: Final = 3_000


class Session(msgspec.Struct, gc=False):
    """One member's session. probe_number: of the probe that is open. Times are monotonic."""

    seen_at_ms: MonotonicMs
    probe_number: int | None = None
    probed_at_ms: MonotonicMs = MonotonicMs(0)

    def seen(self, *, now_ms: MonotonicMs) -> None:
        """Note a sign of life; it answers the probe, too."""
        self.seen_at_ms = now_ms
        self.probe_number = None

    def probe(self, number: int, *, now_ms: MonotonicMs) -> None:
        """Note that the member is probed."""
        self.probe_number, self.probed_at_ms = number, now_ms

    def answered(self, *, knows_group: bool, now_ms: MonotonicMs) -> None:
        """Handle the answer to the probe; a client without a consumer of the group is no longer a member."""
        if knows_group:
            self.seen(now_ms=now_ms)
        else:
            self.probed_at_ms = now_ms - ANSWER_MS_MAX

    def is_silent(self, *, now_ms: MonotonicMs) -> bool:
        """Return whether the member has been silent for too long, and is yet to be probed."""
        return self.probe_number is None and now_ms - self.seen_at_ms >= SILENCE_MS_MAX

    def has_expired(self, *, now_ms: MonotonicMs) -> bool:
        """Return whether the member was probed, and has not answered in time."""
        return self.probe_number is not None and now_ms - self.probed_at_ms >= ANSWER_MS_MAX
