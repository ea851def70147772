"""The audit: which changes, sign-ins and refusals become events, how equal ones are counted together, and how
many a second are kept in a flood.

    created, changed, deleted, reset   one event each, at the end of the turn
    signed in, refused                 equal ones within a second are one event with a count

A flood of refusals makes a few dozen events, then a few a second. It cannot hide sign-ins: the flooder may be
the one who signs in with a stolen password. Nor can it hide the refusals of others: refused parties take
turns, least recently written first, and an event counts the refusals that were left out.

    an address ──────────┐
    a proven user ───────┴► kinds of refusals ─► in turn, while there is room

An event contains names, never a body, a password or a signature. Ours; Apache's broker writes a log file.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from libramq.auth.authorizer import Authorizer
from libramq.auth.operation import LOCATING, Actions, Resource
from libramq.clock import Clock, MonotonicMs, WallMs
from libramq.errors import NoPermission
from libramq.kernel.connection import Principal, client_network

VERSION: Final = 1
#: Ours: how long equal events are collected before they are written as one.
COLLECTED_MS: Final = 1_000
#: Ours: kinds of refusals written in a burst. Anyone can cause refusals: fifty a second with long names wrote
#: 14 GB a day, and brokers with a full disk delete old messages.
KINDS_MAX: Final = 50
#: Ours: how many more kinds may be written with each second.
KINDS_A_SECOND: Final = 5
#: Ours: refused parties that take turns, in a second and over time. Within a second as many further kinds
#: wait, beside the first of each party.
REFUSED_MAX: Final = 1_000
#: Ours: parties with an event of their own for refusals left out in a second; the others share one.
LEFT_OUT_MAX: Final = 5
#: Ours: different sign-ins in a second: all of a cluster's clients come back after a restart.
SIGN_INS_MAX: Final = 1_000
#: Ours: changes that wait for the end of a turn; a turn makes about a hundred.
CHANGES_MAX: Final = 10_000
#: Ours: remembered pairs of user and address that sign each request.
SIGNERS_MAX: Final = 10_000
#: Ours: after this long, a signed request of such a pair counts as a new sign-in.
SIGNED_IN_AGAIN_MS: Final = 3_600_000
#: Ours: resources named in an event.
RESOURCES_MAX: Final = 100
#: Ours: characters kept of a text that a client has sent.
CHARACTERS_MAX: Final = 255
#: The reason of events that are not kept apart.
OTHERS: Final = "more kinds than are kept apart"


class Kind(StrEnum):
    """The kind of an event."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    RESET = "reset"
    SIGNED_IN = "signedIn"
    REFUSED = "refused"


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event, as the JSON of a message.

    user: None if the client has named none; proven, except in refusals. request: the name of a request code,
    an API, a protocol or a mechanism. reason: of a refusal, or of an incomplete change. count: equal events
    in that second, the first one at `at_ms`. resource_count: counts unnamed resources too.
    """

    version: int
    at_ms: int
    broker: str
    kind: Kind
    user: str | None
    host: str
    request: str
    resources: list[str] = []
    resource_count: int = 0
    reason: str | None = None
    count: int = 1


#: Refusals and sign-ins are equal if these are: kind, user, host, request, reason.
_Alike = tuple[Kind, str | None, str, str, str | None]


@dataclass(slots=True)
class _Collected:
    at_ms: WallMs
    count: int = 0


class _Refused(NamedTuple):
    """A refused party. user: a proven user; None: all other users of the address."""

    network: str
    user: str | None


class _Refusals:
    """The refusals of a second by party and kind, with counts of those for which there is no room."""

    def __init__(self) -> None:
        self._kinds: dict[_Refused, dict[_Alike, _Collected]] = {}
        self._left_out: dict[_Refused, _Collected] = {}
        self._of_others: _Collected | None = None
        #: Waiting kinds, beside the first of each party.
        self._further = 0

    def add(self, refused: _Refused, alike: _Alike, wall_ms: WallMs) -> None:
        """Count a refusal."""
        kinds = self._kinds.get(refused)
        if kinds is None and len(self._kinds) < REFUSED_MAX:
            kinds = self._kinds[refused] = {}
        if kinds is None:
            self._of_others = self._of_others or _Collected(wall_ms)
            self._of_others.count += 1
            return
        is_further = bool(kinds) and alike not in kinds
        if is_further and (self._further >= REFUSED_MAX or len(kinds) >= KINDS_MAX):
            self._leave_out(refused, _Collected(wall_ms, 1))
            return
        self._further += is_further
        kinds.setdefault(alike, _Collected(wall_ms)).count += 1

    def in_turn(
        self, room: int, last_written: Callable[[_Refused], int]
    ) -> Iterator[tuple[_Refused, tuple[_Alike, _Collected]]]:
        """Yield one kind of each party in turn, least recently written first; count the rest as left out."""
        waiting = {each: deque(self._kinds[each].items()) for each in sorted(self._kinds, key=last_written)}
        while waiting and room:
            for refused in list(waiting)[:room]:
                room -= 1
                yield refused, waiting[refused].popleft()
                if not waiting[refused]:
                    del waiting[refused]
        for refused, kinds in waiting.items():
            for _, collected in kinds:
                self._leave_out(refused, collected)

    def left_out(self) -> Iterator[tuple[_Alike, _Collected]]:
        """Yield the counts of refusals left out: one each for the parties with most, one for all others."""
        most = heapq.nlargest(LEFT_OUT_MAX, self._left_out.items(), key=lambda each: each[1].count)
        for refused, collected in most:
            self._left_out.pop(refused)
            yield (Kind.REFUSED, refused.user, refused.network, "", OTHERS), collected
        rest = [*self._left_out.values(), *filter(None, [self._of_others])]
        if rest:
            count = sum(each.count for each in rest)
            yield (
                (Kind.REFUSED, None, "", "", OTHERS),
                _Collected(min(each.at_ms for each in rest), count),
            )

    def _leave_out(self, refused: _Refused, collected: _Collected) -> None:
        self._left_out.setdefault(refused, _Collected(collected.at_ms)).count += collected.count


@dataclass(slots=True)
class _Second:
    """Events of one second."""

    began_ms: MonotonicMs
    refusals: _Refusals = field(default_factory=_Refusals)
    counts: dict[Kind, dict[_Alike, _Collected]] = field(default_factory=dict)


class Audit:
    """Collects events. due: called with the time by which `take` has to be called."""

    def __init__(self, broker: str, clock: Clock, due: Callable[[MonotonicMs], None]) -> None:
        self._broker = broker
        self._clock = clock
        self._due = due
        self._changes: list[AuditEvent] = []
        self._second: _Second | None = None
        #: How many more kinds of refusals may be written, and the time of that count.
        self._room, self._room_at_ms = float(KINDS_MAX), clock.monotonic_ms()
        #: Parties in the order of their last written refusal, earliest first.
        self._written: dict[_Refused, None] = {}
        #: The time until which a user counts as signed in from an address.
        self._signers: dict[tuple[str, str], MonotonicMs] = {}

    def changed(
        self,
        kind: Kind,
        principal: Principal,
        request: str,
        resources: Collection[str],
        reason: str | None = None,
    ) -> None:
        """Record a change; reason: why it is incomplete, if it is."""
        if len(self._changes) >= CHANGES_MAX:
            self._collect((kind, _shown(principal.name), principal.host, request, OTHERS))
            return
        what = (kind, _shown(principal.name), principal.host, request, _shown(reason))
        self._changes.append(self._event(what, _Collected(self._clock.wall_ms(), 1), resources))
        self._due(self._clock.monotonic_ms())

    def signed(self, principal: Principal, protocol: str) -> None:
        """Record a signed request as a sign-in, unless the user counts as signed in from that address."""
        signer, now_ms = (principal.name, principal.host), self._clock.monotonic_ms()
        until_ms = self._signers.get(signer)
        if until_ms is not None and now_ms < until_ms:
            return
        if len(self._signers) >= SIGNERS_MAX:
            self._signers.clear()
        self._signers[signer] = now_ms + SIGNED_IN_AGAIN_MS
        self.signed_in(principal, protocol)

    def signed_in(self, principal: Principal, mechanism: str) -> None:
        """Record that a user has signed in."""
        self._collect((Kind.SIGNED_IN, _shown(principal.name), principal.host, mechanism, None))

    def refused(
        self, user: str | None, host: str, request: str, reason: str, *, is_proven: bool = False
    ) -> None:
        """Record a refused request; user: the user that it names, is_proven: whether with a valid proof."""
        alike = (Kind.REFUSED, _shown(user), host, request, _shown(reason))
        refused = _Refused(client_network(host), alike[1] if is_proven else None)
        self._this_second().refusals.add(refused, alike, self._clock.wall_ms())

    def take(self, now_ms: MonotonicMs, *, all_of_them: bool = False) -> list[AuditEvent]:
        """Return the events to write now."""
        events, self._changes = self._changes, []
        second = self._second
        if second is not None:
            ends_ms = second.began_ms + COLLECTED_MS
            if all_of_them or now_ms >= ends_ms:
                self._second = None
                events += (self._event(*each) for each in self._written_refusals(second))
                for counts in second.counts.values():
                    events += (self._event(alike, collected) for alike, collected in counts.items())
            else:
                self._due(ends_ms)
        return events

    def _this_second(self) -> _Second:
        second = self._second
        if second is None:
            now_ms = self._clock.monotonic_ms()
            second = self._second = _Second(now_ms)
            self._due(now_ms + COLLECTED_MS)
            gained = (now_ms - self._room_at_ms) / 1000 * KINDS_A_SECOND
            self._room, self._room_at_ms = min(self._room + gained, KINDS_MAX), now_ms
        return second

    def _collect(self, alike: _Alike) -> None:
        counts = self._this_second().counts.setdefault(alike[0], {})
        if alike not in counts and len(counts) >= SIGN_INS_MAX:
            alike = alike[0], None, "", "", OTHERS
        counts.setdefault(alike, _Collected(self._clock.wall_ms())).count += 1

    def _written_refusals(self, second: _Second) -> Iterator[tuple[_Alike, _Collected]]:
        """Yield the refusals of a second for which there is room, and the counts of the others."""
        order = {each: number for number, each in enumerate(self._written)}
        for refused, found in second.refusals.in_turn(int(self._room), lambda each: order.get(each, -1)):
            self._room -= 1
            self._written.pop(refused, None)
            self._written[refused] = None
            yield found
        while len(self._written) > REFUSED_MAX:
            del self._written[next(iter(self._written))]
        yield from second.refusals.left_out()

    def _event(self, alike: _Alike, collected: _Collected, resources: Collection[str] = ()) -> AuditEvent:
        kind, user, host, request, reason = alike
        return AuditEvent(
            version=VERSION,
            at_ms=int(collected.at_ms),
            broker=self._broker,
            kind=kind,
            user=user,
            host=host,
            request=request,
            resources=[_shown(each) or "" for each in list(resources)[:RESOURCES_MAX]],
            resource_count=len(resources),
            reason=reason,
            count=collected.count,
        )


class AuditedAuthorizer:
    """An Authorizer that records its refusals, for protocols whose requests name their resources one by one.

    Refused lookups of topics are not recorded: to list topics, each of them is checked.
    """

    def __init__(self, authorizer: Authorizer, audit: Audit, protocol: str) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self._protocol = protocol

    @property
    def permits_everything(self) -> bool:
        """Return whether nothing is refused."""
        return self._authorizer.permits_everything

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        """Return if any of the actions is permitted; raise errors.NoPermission if none is."""
        try:
            self._authorizer.authorize(principal, resource, actions)
        except NoPermission as refused:
            if actions is not LOCATING:
                self._audit.refused(
                    principal.name, principal.host, self._protocol, refused.remark, is_proven=True
                )
            raise


#: Records a change: Audit.changed, or nothing.
Changed = Callable[[Kind, Principal, str, Collection[str], str | None], None]


def unrecorded(
    kind: Kind, principal: Principal, request: str, resources: Collection[str], reason: str | None
) -> None:
    """Record nothing: there is no audit."""


def encode_event(event: AuditEvent) -> bytes:
    """Return the JSON of an event."""
    return msgspec.json.encode(event)


def decode_event(data: bytes) -> AuditEvent:
    """Return the event in a message; raises msgspec.DecodeError for another version or invalid JSON."""
    event = msgspec.json.decode(data, type=AuditEvent)
    if event.version != VERSION:
        raise msgspec.ValidationError(f"version {event.version}")
    return event


def refusals_of(path: Path) -> Path:
    """Return the path of the refusals' file for a file of other events."""
    return path.with_name(path.name + ".refused")


def former_of(path: Path) -> Path:
    """Return the path to which a full file is renamed."""
    return path.with_name(path.name + ".1")


def _shown(text: str | None) -> str | None:
    """Return a client's text shortened, without the characters that JSON cannot encode or has to escape."""
    if text is None:
        return None
    return "".join(each if each.isprintable() else "?" for each in text[:CHARACTERS_MAX])
