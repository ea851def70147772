"""An authorizer for tests: it denies some resources, and remembers what it was asked."""

from collections.abc import Collection

from libramq.auth.resource import Action, Resource
from libramq.codes import ResponseCode
from libramq.errors import NoPermission
from libramq.kernel.connection import Principal

Asked = tuple[str, Action]


class Guard:
    """It permits everything except what is in `denied`: texts like "Topic:orders"."""

    permits_everything = False

    def __init__(self, denied: Collection[str] = ()) -> None:
        self.denied = set(denied)
        self.asked: list[Asked] = []
        self.principals: set[Principal] = set()

    def authorize(self, principal: Principal, resource: Resource, action: Action) -> None:
        self.principals.add(principal)
        self.asked.append((str(resource), action))
        if str(resource) in self.denied:
            raise NoPermission(ResponseCode.NO_PERMISSION, f"{principal.name} may not {action} {resource}")
