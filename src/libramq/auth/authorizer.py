"""The authorizer and the authenticator: the interfaces that identify a client and permit or refuse an
operation before it runs; and the authorizer that allows everything.

    by request        RocketMQ: each is signed; else the certificate    Request.principal
    by connection     a password, once for all of its requests          Connection.principal

Without access control (`access_control.py`) there is no authenticator, a request has its connection's
principal, and everyone may do everything. Upstream: auth/authentication, auth/authorization.
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
    """Raise errors.NoPermission unless the principal may act on every resource of the operation."""
    if not authorizer.permits_everything:
        for resource, actions in resources(operation):
            authorizer.authorize(operation.principal, resource, actions)


def is_permitted(authorizer: Authorizer, operation: Operation) -> bool:
    """Return whether the principal may act on every resource of the operation."""
    try:
        require_permission(authorizer, operation)
    except NoPermission:
        return False
    return True


class Authenticator(Protocol):
    """Identifies clients; raises errors.NoPermission if a proof is missing or wrong."""

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        """Return the signer of a request with these fields, or else the user of its connection."""
        ...

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        """Return the user with this name and password."""
        ...
