"""The authorizer: asked about every resource of every operation, before the operation runs.

Until access control exists, everyone may do everything; the check is made already, so that no request and no
protocol can be forgotten. Upstream: auth/authorization.
"""

from typing import Final, Protocol

from libramq.auth.operation import Operation, resources
from libramq.auth.resource import Action, Resource
from libramq.kernel.connection import Principal


class Authorizer(Protocol):
    """Decides whether a principal may perform an action on a resource."""

    @property
    def permits_everything(self) -> bool:
        """Return whether every operation is permitted, so that no check is needed."""
        ...

    def authorize(self, principal: Principal, resource: Resource, action: Action) -> None:
        """Return if the action is permitted; raise errors.NoPermission if not."""
        ...


class AllowAll:
    """Permits everyone everything."""

    permits_everything = True

    def authorize(self, principal: Principal, resource: Resource, action: Action) -> None:
        """Allow."""


ALLOW_ALL: Final[Authorizer] = AllowAll()


def require_permission(authorizer: Authorizer, operation: Operation) -> None:
    """Raise errors.NoPermission unless the operation's principal may do all of it."""
    if not authorizer.permits_everything:
        for resource, action in resources(operation):
            authorizer.authorize(operation.principal, resource, action)
