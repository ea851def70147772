"""The authorizer and the authenticator: the interfaces that are asked, before an operation runs, who a client
is and whether it may do that; and the one that allows everything.

    by request        RocketMQ: each is signed; else the certificate    Request.principal
    by connection     a password, once for all of its requests          Connection.principal

Without access control (`access_control.py`) there is no authenticator, a request is its connection's, and
everyone may do everything. Upstream: auth/authentication, auth/authorization.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from libramq.auth.operation import Actions, Operation, Resource, resources
from libramq.errors import NoPermission
from libramq.kernel.connection import Connection, Principal


class Authorizer(Protocol):
    """Decides whether a principal may perform actions on a resource."""

    @property
    def permits_everything(self) -> bool:
        """Return whether every operation is permitted, so that no check is needed."""
        ...

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        """Return if any of the actions is permitted; raise errors.NoPermission if none is."""
        ...


class AllowAll:
    """Permits everyone everything."""

    permits_everything = True

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        """Allow."""


ALLOW_ALL: Final[Authorizer] = AllowAll()


def require_permission(authorizer: Authorizer, operation: Operation) -> None:
    """Raise errors.NoPermission unless the operation's principal may do all of it."""
    if not authorizer.permits_everything:
        for resource, actions in resources(operation):
            authorizer.authorize(operation.principal, resource, actions)


def is_permitted(authorizer: Authorizer, operation: Operation) -> bool:
    """Return whether the operation's principal may do all of it."""
    try:
        require_permission(authorizer, operation)
    except NoPermission:
        return False
    return True


class Authenticator(Protocol):
    """Finds out who a client is; raises errors.NoPermission where a proof is missing or wrong."""

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        """Return who has signed a request with these fields, or whose connection it came over."""
        ...

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        """Return the user with this name and password."""
        ...
