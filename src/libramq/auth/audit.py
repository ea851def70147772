"""The audit: which changes, sign-ins and refusals become events, how like ones are counted together, and how
many a second are kept in a flood.

    created, changed, deleted, reset   each is an event, at the end of the turn
    signed in, refused                 those of a second that are alike are one event, with their count

A flood of refusals makes some dozen events, then a few a second. It hides no sign-in: who floods may be who
signs in with a stolen password. Nor what others are refused: those who are refused take turns, the one that
was written last comes last, and of each is written how many of its refusals are left out.

    an address ──────────────┐
    a user who has proven it ┴► kinds of refusals ─► in turn, as long as there is room

An event has names, and never a body, a password or a signature. Ours; Apache's broker writes a log file.
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
#: Ours: after how long events that are alike are written, as one.
COLLECTED_MS: Final = 1_000
#: Ours: kinds of refusals that are written at once, and how many more with each second. Anybody can cause
#: them: fifty a second, of long names, wrote 14 GB a day, and brokers with a full disk delete old messages.
KINDS_MAX: Final = 50
KINDS_A_SECOND: Final = 5
#: Ours: those who are refused and take turns, in a second and over time; and kinds that wait for their turn
#: in that second, beside one of each of these.
REFUSED_MAX: Final = 1_000
#: Ours: of how many is said in a second how many of their refusals were left out; the rest are one event.
LEFT_OUT_MAX: Final = 5
#: Ours: and sign-ins, of so many users and addresses: all of a cluster's clients come back after a restart.
SIGN_INS_MAX: Final = 1_000
#: Ours: changes that wait for the end of a turn, which makes a hundred.
CHANGES_MAX: Final = 10_000
#: Ours: users and addresses whose requests are signed one by one; and after how long one counts as new.
SIGNERS_MAX: Final = 10_000
SIGNED_IN_AGAIN_MS: Final = 3_600_000
#: Ours: resources that an event names, and characters of whatever a client has sent.
RESOURCES_MAX: Final = 100
CHARACTERS_MAX: Final = 255
#: The reason of those that are not kept apart.
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
    """An event, as the JSON of a message. user: None: it has named none; it is proven unless refused.

    request: the name of its code or API, a protocol, or a mechanism. reason: of a refusal, or why a change is
    not complete. count: how many were alike in that second, the first one at `at_ms`. resource_count: of all,
    if not all are named.
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


#: What makes refusals and sign-ins alike: kind, user, host, request, reason.
_Alike = tuple[Kind, str | None, str, str, str | None]


@dataclass(slots=True)
class _Collected:
    at_ms: WallMs
    count: int = 0


class _Refused(NamedTuple):
    """The refused party. user: a proven one; None: all others of the address, whatever they are called."""

    network: str
    user: str | None


class _Refusals:
    """The refusals of a second: who is refused, and what; and how many there is no memory for."""

    def __init__(self) -> None:
        self._kinds: dict[_Refused, dict[_Alike, _Collected]] = {}
        self._left_out: dict[_Refused, _Collected] = {}
        self._of_others: _Collected | None = None
        #: Kinds that wait, beside the first of each.
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
        """Yield one kind of each in turn, beginning with who was written the longest ago; drop the others."""
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
        """Yield how many refusals were left out: of those with most of them, and of all others together."""
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
        #: How many more kinds of refusals are written, as of some time.
        self._room, self._room_at_ms = float(KINDS_MAX), clock.monotonic_ms()
        #: When a refusal of each was written last: the earliest first.
        self._written: dict[_Refused, None] = {}
        #: Until when a user counts as signed in from an address.
        self._signers: dict[tuple[str, str], MonotonicMs] = {}

    def changed(
        self,
        kind: Kind,
        principal: Principal,
        request: str,
        resources: Collection[str],
        reason: str | None = None,
    ) -> None:
        """Record a change that was made; reason: why only a part of it was."""
        if len(self._changes) >= CHANGES_MAX:
            self._collect((kind, _shown(principal.name), principal.host, request, OTHERS))
            return
        what = (kind, _shown(principal.name), principal.host, request, _shown(reason))
        self._changes.append(self._event(what, _Collected(self._clock.wall_ms(), 1), resources))
        self._due(self._clock.monotonic_ms())

    def signed(self, principal: Principal, protocol: str) -> None:
        """Record a signed request as a sign-in, unless its user is known to be signed in from there."""
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
        """Record that a request was refused; user: whom it names, is_proven: and who it is."""
        alike = (Kind.REFUSED, _shown(user), host, request, _shown(reason))
        refused = _Refused(client_network(host), alike[1] if is_proven else None)
        self._this_second().refusals.add(refused, alike, self._clock.wall_ms())

    def take(self, now_ms: MonotonicMs, *, all_of_them: bool = False) -> list[AuditEvent]:
        """Return what is to be written now."""
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
        """Yield the refusals of a second that there is room for, and how many others there were."""
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
    """An Authorizer of a protocol whose requests name resources one by one; records what it refuses.

    Looking a topic up is not recorded: lists of topics ask about each.
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
    """Record nothing, where there is no audit."""


def encode_event(event: AuditEvent) -> bytes:
    """Return the JSON of an event."""
    return msgspec.json.encode(event)


def decode_event(data: bytes) -> AuditEvent:
    """Return the event in a message; raises msgspec.DecodeError for one of another version."""
    event = msgspec.json.decode(data, type=AuditEvent)
    if event.version != VERSION:
        raise msgspec.ValidationError(f"version {event.version}")
    return event


def refusals_of(path: Path) -> Path:
    """Return the file with the refusals beside one with other events."""
    return path.with_name(path.name + ".refused")


def former_of(path: Path) -> Path:
    """Return the file that a full one became."""
    return path.with_name(path.name + ".1")


def _shown(text: str | None) -> str | None:
    """Return a client's text without what JSON cannot have or makes long, and not longer than names are."""
    if text is None:
        return None
    return "".join(each if each.isprintable() else "?" for each in text[:CHARACTERS_MAX])
