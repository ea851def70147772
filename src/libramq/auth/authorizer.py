"""The authorizer: the interface that is asked whether a principal may do an operation, before it runs; and
the one that allows everything.

Without access control (`access_control.py`) everyone may do everything. Upstream: auth/authorization.
"""

from typing import Final, Protocol

from libramq.auth.operation import Operation, resources
from libramq.auth.resource import Actions, Resource
from libramq.errors import NoPermission
from libramq.kernel.connection import Principal


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
