"""An authorizer and an authenticator for tests."""

from collections.abc import Collection, Mapping

from libramq.auth.operation import Actions, Resource
from libramq.auth.signature import ACCESS_KEY
from libramq.codes import ResponseCode
from libramq.errors import NoPermission
from libramq.kernel.connection import Connection, Principal
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, is_signed

#: A resource, and the actions any of which is enough, as "Sub|Get".
Asked = tuple[str, str]


class Guard:
    """Permits everything except the entries of `denied`, such as "Topic:orders"."""

    permits_everything = False

    def __init__(self, denied: Collection[str] = ()) -> None:
        self.denied = set(denied)
        self.asked: list[Asked] = []
        self.principals: set[Principal] = set()

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        self.principals.add(principal)
        action = "|".join(actions)
        self.asked.append((str(resource), action))
        if str(resource) in self.denied:
            raise NoPermission(ResponseCode.NO_PERMISSION, f"{principal.name} may not {action} {resource}")


class Users:
    """Knows users by their passwords; an unsigned request acts as its connection's principal."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        name = fields.get(ACCESS_KEY)
        if name is None:
            return connection.principal
        credentials = Credentials(name, self._passwords.get(name, "unknown"))
        if name in self._passwords and is_signed(Command(code=0, ext=dict(fields), body=body), credentials):
            return Principal(name)
        raise NoPermission(ResponseCode.NO_PERMISSION, f"the signature of {name} is wrong")

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        if self._passwords.get(name) != password:
            raise NoPermission(ResponseCode.NO_PERMISSION, "unknown user or wrong password")
        return Principal(name)
