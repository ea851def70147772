"""The authorizer: asked by every dispatcher before a processor sees a request.

Until access control comes, everybody may do everything; the call is already there, so that no request can be
forgotten. Upstream: auth/authorization.
"""

from typing import Protocol

from libramq.remoting.requests import Action, Resource

#: Who asks, while nobody has to say.
ANONYMOUS = "anonymous"


class Authorizer(Protocol):
    """Decides whether a principal may act on a resource."""

    def authorize(self, principal: str, resource: Resource, name: str | None, action: Action) -> None:
        """Return if it may; raise errors.NoPermission if not. name: None where the body names it."""
        ...


class AllowAll:
    """Lets everybody do everything."""

    def authorize(self, principal: str, resource: Resource, name: str | None, action: Action) -> None:
        """Allow."""
