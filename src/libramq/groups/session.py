"""The session of a member that sends heartbeats only: how long it may be silent before it is given up.

    heartbeat, pull, commit ──► seen
    75 s without            ──► asked once ──► an answer: seen
                                           └─► "no such group here", or none for 3 s: expired

Upstream waits 120 s and asks nothing (ClientHousekeepingService, BrokerConfig.channelExpiredTimeout).
Members of a coordinated group have a session at their coordinator besides.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from libramq.clock import MonotonicMs

P = TypeVar("P", bound=Hashable)

#: The design: two of the Java client's heartbeats (heartbeatBrokerInterval, 30 s) and half of another.
SILENCE_MS_MAX: Final = 75_000
#: NettyClientConfig.timeoutMillis: as long as clients wait for answers themselves.
ANSWER_MS_MAX: Final = 3_000


class Probe(NamedTuple, Generic[P]):
    """A question to a silent member; its answer carries the number."""

    group: str
    peer: P
    number: int


@dataclass(slots=True)
class _Session:
    """asked: the number of the question that is open."""

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
        """A heartbeat: a session begins, or goes on."""
        session = self._sessions.get((group, peer))
        if session is None:
            self._sessions[group, peer] = _Session(now_ms)
        else:
            self._seen(session, now_ms)

    def seen(self, group: str, peer: P, *, now_ms: MonotonicMs) -> None:
        """Something else that only the living do; nothing to those who are no members."""
        session = self._sessions.get((group, peer))
        if session is not None:
            self._seen(session, now_ms)

    def answered(self, peer: P, number: int, *, knows_group: bool, now_ms: MonotonicMs) -> None:
        """An answer to a question; who does not know the group is no member of it any more."""
        group, probed_peer = self._open.get(number, ("", None))
        if probed_peer != peer:
            return
        session = self._sessions[group, peer]
        if knows_group:
            self._seen(session, now_ms)
        else:
            session.requested_at_ms = now_ms - ANSWER_MS_MAX

    def ended(self, group: str, peer: P) -> None:
        """A member is gone."""
        session = self._sessions.pop((group, peer), None)
        if session is not None and session.probe_number is not None:
            del self._open[session.probe_number]

    def look(self, *, now_ms: MonotonicMs) -> tuple[list[Probe[P]], list[tuple[str, P]]]:
        """Whom to ask, and whose session has expired."""
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
