"""Access control: who has signed a request, who is a super user or another broker, and whether a user may do
what a request is about.

    signature ───┬► Authenticator ─► Principal ─► Authorizer ─► the user's policies
    certificate ─┘                                          └─► everything, for a super user or another broker

Nothing is remembered between requests. The cluster's brokers sign with credentials of the configuration, not
of the table: no change of the table parts them, even if a user has their name.
Upstream: auth/authentication/chain/DefaultAuthenticationHandler.java,
authorization/chain/UserAuthorizationHandler.java, AclAuthorizationHandler.java.
"""

import hashlib
import hmac
from collections.abc import Mapping

from libramq.auth.policies import Decision
from libramq.auth.resource import ALL, Actions, Resource, ResourceKind
from libramq.auth.signature import ACCESS_KEY, is_right
from libramq.auth.users import User, Users
from libramq.codes import ResponseCode
from libramq.errors import NoPermission
from libramq.formats.properties_file import shown
from libramq.kernel.connection import ANONYMOUS, Connection, Principal, host_of


class AccessControl:
    """An Authenticator and an Authorizer by a table of users.

    cluster: the name of this server's cluster. brokers: the name of the cluster's brokers, and the secrets
    that are accepted from them.
    """

    permits_everything = False

    def __init__(self, users: Users, *, cluster: str, brokers: tuple[str, tuple[bytes, ...]] | None) -> None:
        self._users = users
        self._cluster = cluster
        self._brokers = brokers

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        """Return who has signed a request, or whose certificate its connection has shown.

        Raises NoPermission, with Apache's words. What is signed is believed before the certificate.
        """
        if connection.certificate_names and not fields.get(ACCESS_KEY):
            return self.by_certificate(connection)
        if not fields:
            raise _refused("authentication field is null")
        name = fields.get(ACCESS_KEY)
        if not name:
            raise _refused("username cannot be null.")
        user = self._users.get(name)
        if user is not None and user.is_enabled and is_right(fields, body, *user.secrets):
            return Principal(name, host_of(connection))
        brokers = self._brokers
        if brokers is not None and brokers[0] == name and is_right(fields, body, *brokers[1]):
            return Principal(name, host_of(connection), is_unrestricted=True)
        if user is None:
            raise _refused(f"User:{name} is not found.")
        raise _refused("check signature failed." if user.is_enabled else f"User:{name} is disabled.")

    def by_certificate(self, connection: Connection) -> Principal:
        """Return the first user whose name is, letter for letter, one of those in the certificate."""
        names = connection.certificate_names
        user = next(filter(None, map(self._users.get, names)), None)
        if user is None:
            raise _refused(
                f"no user has a name of the client's certificate, which has {shown(', '.join(names))}"
            )
        if not user.is_enabled:
            raise _refused(f"User:{user.name} is disabled.")
        return Principal(user.name, host_of(connection))

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        """Return the user with this name and password; raises NoPermission."""
        user = self._users.get(name)
        encoded = password.encode(errors="surrogatepass")
        secrets = user.secrets if user is not None else (b"",)
        matching = [secret for secret in secrets if hmac.compare_digest(encoded, secret)]
        if user is None or not matching or not user.is_enabled:
            raise _refused("no such user, or another password")
        return self.signed_in(connection, user, matching[0])

    def enabled_user(self, name: str) -> User | None:
        """Return a user that may sign in."""
        user = self._users.get(name)
        return user if user is not None and user.is_enabled else None

    def signed_in(self, connection: Connection, user: User, secret: bytes) -> Principal:
        """Return the principal of a user who has proven to know a secret by another protocol's mechanism."""
        return Principal(user.name, host_of(connection), proof=_proof(secret))

    def may_go_on(self, principal: Principal) -> bool:
        """Return whether a signed-in principal is still an enabled user whose password is still valid."""
        user = self.enabled_user(principal.name)
        return user is not None and principal.proof in (b"", *map(_proof, user.secrets))

    def may_be_sent_to(self, principal: Principal) -> bool:
        """Return whether a client may get what it has not asked for: as nobody, a broker, or a valid user."""
        return principal is ANONYMOUS or principal.is_unrestricted or self.may_go_on(principal)

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        """Return if any of the actions is permitted; raise NoPermission, with Apache's words, if none is."""
        if principal.is_unrestricted:
            return
        user = self._known(principal)
        if user.is_super:
            return
        if resource.kind is ResourceKind.CLUSTER and resource.name == ALL:
            resource = Resource(ResourceKind.CLUSTER, self._cluster)
        decision = user.policies.decide(resource, actions, principal.host)
        if decision is not Decision.ALLOW:
            reason = "no matched policies." if decision is None else "the decision is deny."
            raise _refused(
                f"User:{user.name} has no permission to access {resource} from {principal.host}, {reason}"
            )

    def is_super(self, principal: Principal) -> bool:
        """Return whether a principal may make super users, and change them."""
        user = self._users.get(principal.name) if principal is not ANONYMOUS else None
        return principal.is_unrestricted or (user is not None and user.is_enabled and user.is_super)

    def _known(self, principal: Principal) -> User:
        if principal is ANONYMOUS:  # Whatever users are called.
            raise _refused("username cannot be null.")
        user = self._users.get(principal.name)
        if user is None:
            raise _refused(f"User:{principal.name} not found.")
        if not user.is_enabled:
            raise _refused(f"User:{principal.name} is disabled.")
        return user


def _proof(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _refused(remark: str) -> NoPermission:
    return NoPermission(ResponseCode.NO_PERMISSION, remark)
