"""The session of a member that only sends heartbeats: how long it may be silent before it is removed.

    heartbeat, pull, commit ──► seen
        75 s of silence       ──► one probe ──► an answer: seen
                                             └─► "no such group here", or none for 3 s: expired

Upstream waits 120 s and sends no probe (ClientHousekeepingService, BrokerConfig.channelExpiredTimeout).
Members of a coordinated group also have a session at their coordinator.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from libramq.clock import MonotonicMs

P = TypeVar("P", bound=Hashable)

#: The design's: two and a half of the Java client's heartbeat intervals (heartbeatBrokerInterval, 30 s).
SILENCE_MS_MAX: Final = 75_000
#: NettyClientConfig.timeoutMillis: clients wait as long for answers themselves.
ANSWER_MS_MAX: Final = 3_000


class Probe(NamedTuple, Generic[P]):
    """A probe of a silent member; its answer carries the number."""

    group: str
    peer: P
    number: int


@dataclass(slots=True)
class _Session:
    """One member's session. asked: the number of its open probe."""

    seen_at_ms: MonotonicMs
    probe_number: int | None = None
    requested_at_ms: MonotonicMs = MonotonicMs(0)


class Sessions(Generic[P]):
    """The sessions of all members, by group and connection. Times are monotonic."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, P], _Session] = {}
        self._open: dict[int, tuple[str, P]] = {}
        self._last_number = 0

    def beat(self, group: str, peer: P, *, now_ms: MonotonicMs) -> None:
        """Apply a heartbeat: begin or renew a session."""
        session = self._sessions.get((group, peer))
        if session is None:
            self._sessions[group, peer] = _Session(now_ms)
        else:
            self._seen(session, now_ms)

    def seen(self, group: str, peer: P, *, now_ms: MonotonicMs) -> None:
        """Note another sign of life; ignored for clients that are no members."""
        session = self._sessions.get((group, peer))
        if session is not None:
            self._seen(session, now_ms)

    def answered(self, peer: P, number: int, *, knows_group: bool, now_ms: MonotonicMs) -> None:
        """Handle the answer to a probe; a client that does not know the group is no member of it any more."""
        group, probed_peer = self._open.get(number, ("", None))
        if probed_peer != peer:
            return
        session = self._sessions[group, peer]
        if knows_group:
            self._seen(session, now_ms)
        else:
            session.requested_at_ms = now_ms - ANSWER_MS_MAX

    def ended(self, group: str, peer: P) -> None:
        """Forget a member that has gone."""
        session = self._sessions.pop((group, peer), None)
        if session is not None and session.probe_number is not None:
            del self._open[session.probe_number]

    def look(self, *, now_ms: MonotonicMs) -> tuple[list[Probe[P]], list[tuple[str, P]]]:
        """Return the members to probe, and those whose session has expired."""
        probes: list[Probe[P]] = []
        expired: list[tuple[str, P]] = []
        for (group, peer), session in self._sessions.items():
            if now_ms - session.seen_at_ms < SILENCE_MS_MAX:
                continue
            if session.probe_number is None:
                self._last_number += 1
                session.probe_number, session.requested_at_ms = self._last_number, now_ms
                self._open[self._last_number] = (group, peer)
                probes.append(Probe(group, peer, self._last_number))
            elif now_ms - session.requested_at_ms >= ANSWER_MS_MAX:
                expired.append((group, peer))
        return probes, expired

    def _seen(self, session: _Session, now_ms: MonotonicMs) -> None:
        session.seen_at_ms = now_ms
        if session.probe_number is not None:
            del self._open[session.probe_number]
            session.probe_number = None
