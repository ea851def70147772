"""The dry run: decides as access control does, logs what would have been refused, lets it pass; and what it
refuses all the same.

An operator of a running cluster switches it on, reads the log until it is silent, and then enforces. Whatever
changes the cluster itself or its users is refused already: who is let pass now could make itself a user for
later. Each refusal is logged once in a while, with the number of those since. Ours; Apache's has none.
"""

from collections.abc import Mapping
from typing import Final

from libramq.auth.access_control import AccessControl
from libramq.auth.resource import Action, Actions, Resource, ResourceKind
from libramq.clock import Clock, MonotonicMs
from libramq.errors import NoPermission
from libramq.kernel.connection import ANONYMOUS, Connection, Principal, host_of
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: how soon the same refusal is logged again, and how many different ones are kept for that long.
LOGGED_EVERY_MS: Final = 60_000
KINDS_MAX: Final = 1_000


class DryRun:
    """An Authenticator and an Authorizer that refuse nothing but changes of the cluster."""

    permits_everything = False

    def __init__(self, access: AccessControl, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._since_ms: MonotonicMs | None = None

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        """Return who has signed a request; nobody in particular if that is not proven."""
        try:
            return self._access.by_signature(connection, fields, body)
        except NoPermission as refused:
            self._note(f"{refused.remark} (from {host_of(connection)})")
            return ANONYMOUS

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        """Return the user with this name and password; raises NoPermission, as a client would be told."""
        return self._access.by_password(connection, name, password)

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        """Return if an action is permitted, or only would be refused; raises NoPermission otherwise."""
        try:
            self._access.authorize(principal, resource, actions)
        except NoPermission as refused:
            if resource.kind is ResourceKind.CLUSTER and Action.UPDATE in actions:
                raise
            self._note(refused.remark)

    def _note(self, remark: str) -> None:
        """Log a refusal, if it has not been lately; others of the same kind are counted."""
        now_ms = self._clock.monotonic_ms()
        if self._since_ms is None or now_ms - self._since_ms >= LOGGED_EVERY_MS:
            repeated = sum(count - 1 for count in self._counts.values())
            if repeated:
                log.warning("would have been refused again", times=repeated, kinds=len(self._counts))
            self._counts.clear()
            self._since_ms = now_ms
        if remark in self._counts:
            self._counts[remark] += 1
        elif len(self._counts) < KINDS_MAX:
            self._counts[remark] = 1
            log.warning("would be refused without authorizationDryRun", reason=remark)
