"""The audit: who changed what, who signed in, and who was refused, as events for those who look later.

    created, changed, deleted, reset   each is an event, at the end of the turn
    signed in, refused                 those of a second that are alike are one event, with their count

A flood of refusals makes some dozen events, then a few a second: further kinds are one event together. It
hides no sign-in: who floods may be who signs in with a stolen password. An event has names, and never a body,
a password or a signature. Ours; Apache's broker writes a log file.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from libramq.auth.authorizer import Authorizer
from libramq.auth.operation import LOCATING
from libramq.auth.resource import Actions, Resource
from libramq.clock import Clock, MonotonicMs, WallMs
from libramq.errors import NoPermission
from libramq.kernel.connection import Principal

VERSION: Final = 1
#: Ours: after how long events that are alike are written, as one.
COLLECTED_MS: Final = 1_000
#: Ours: kinds of refusals that are kept apart at once, and how many more with each second. Anybody can cause
#: them: fifty a second, of long names, wrote 14 GB a day, and brokers with a full disk delete old messages.
KINDS_MAX: Final = 50
KINDS_A_SECOND: Final = 5
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
    count: int = 1


@dataclass(slots=True)
class _Second:
    """Events of one second."""

    began_ms: MonotonicMs
    counts: dict[Kind, dict[_Alike, _Collected]] = field(default_factory=dict)
    #: Those that are not kept apart.
    others: dict[Kind, _Collected] = field(default_factory=dict)


class Audit:
    """Collects events. due: called with the time by which `take` has to be called."""

    def __init__(self, broker: str, clock: Clock, due: Callable[[MonotonicMs], None]) -> None:
        self._broker = broker
        self._clock = clock
        self._due = due
        self._changes: list[AuditEvent] = []
        self._second: _Second | None = None
        #: How many more kinds of refusals are kept apart, as of some time.
        self._room, self._room_at_ms = float(KINDS_MAX), clock.monotonic_ms()
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
        event = AuditEvent(
            version=VERSION,
            at_ms=int(self._clock.wall_ms()),
            broker=self._broker,
            kind=kind,
            user=_shown(principal.name),
            host=principal.host,
            request=request,
            resources=[_shown(each) or "" for each in list(resources)[:RESOURCES_MAX]],
            resource_count=len(resources),
            reason=_shown(reason),
        )
        self._changes.append(event)
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

    def refused(self, user: str | None, host: str, request: str, reason: str) -> None:
        """Record that a request was refused; user: whom it names, whether that is proven or not."""
        self._collect((Kind.REFUSED, _shown(user), host, request, _shown(reason)))

    def take(self, now_ms: MonotonicMs, *, all_of_them: bool = False) -> list[AuditEvent]:
        """Return what is to be written now."""
        events, self._changes = self._changes, []
        second = self._second
        if second is not None:
            ends_ms = second.began_ms + COLLECTED_MS
            if all_of_them or now_ms >= ends_ms:
                self._second = None
                for counts in second.counts.values():
                    events += (self._event(alike, collected) for alike, collected in counts.items())
                for kind, collected in second.others.items():
                    events.append(self._event((kind, None, "", "", OTHERS), collected))
            else:
                self._due(ends_ms)
        return events

    def _collect(self, alike: _Alike) -> None:
        second = self._second
        if second is None:
            now_ms = self._clock.monotonic_ms()
            second = self._second = _Second(now_ms)
            self._due(now_ms + COLLECTED_MS)
            gained = (now_ms - self._room_at_ms) / 1000 * KINDS_A_SECOND
            self._room, self._room_at_ms = min(self._room + gained, KINDS_MAX), now_ms
        kind = alike[0]
        counts = second.counts.setdefault(kind, {})
        has_room = len(counts) < SIGN_INS_MAX if kind is Kind.SIGNED_IN else self._room >= 1
        is_kept = alike in counts or has_room
        collected = counts.get(alike) if is_kept else second.others.get(kind)
        if collected is not None:
            collected.count += 1
        elif is_kept:
            counts[alike] = _Collected(self._clock.wall_ms())
            self._room -= kind is not Kind.SIGNED_IN
        else:
            second.others[kind] = _Collected(self._clock.wall_ms())

    def _event(self, alike: _Alike, collected: _Collected) -> AuditEvent:
        kind, user, host, request, reason = alike
        return AuditEvent(
            version=VERSION,
            at_ms=int(collected.at_ms),
            broker=self._broker,
            kind=kind,
            user=user,
            host=host,
            request=request,
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
                self._audit.refused(principal.name, principal.host, self._protocol, refused.remark)
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


def _shown(text: str | None) -> str | None:
    """Return a client's text without what JSON cannot have or makes long, and not longer than names are."""
    if text is None:
        return None
    return "".join(each if each.isprintable() else "?" for each in text[:CHARACTERS_MAX])
