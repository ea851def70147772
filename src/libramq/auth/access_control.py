"""Access control: authenticates requests and authorizes them by the user's policies. Super users and the
cluster's other brokers may do everything; the dry run only logs refusals.

    signature ───┬► Authenticator ─► Principal ─► Authorizer ─► the user's policies
    certificate ─┘                                          └─► everything, for a super user or another broker

The dry run makes the same decisions, but logs a refusal and lets the request pass: an operator of a running
cluster switches it on, reads the log until it is silent, and then enforces. Changes of the cluster itself or
its users are refused even so; otherwise an intruder could create a user for later. Ours.

No decision is cached between requests. The cluster's brokers sign with credentials from the configuration,
not from the user table, so no change of the table can lock them out, even if a user has their name.
Upstream: auth/authentication/chain/DefaultAuthenticationHandler.java,
authorization/chain/UserAuthorizationHandler.java, AclAuthorizationHandler.java.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from libramq.auth.operation import ALL, Action, Actions, Resource, ResourceKind
from libramq.auth.policies import Decision, refused
from libramq.auth.signature import ACCESS_KEY, is_right
from libramq.auth.users import User, Users
from libramq.clock import Clock, MonotonicMs
from libramq.errors import NoPermission
from libramq.formats.properties_file import shown
from libramq.kernel.connection import ANONYMOUS, Connection, Principal, host_of
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: how soon the same refusal is logged again.
LOGGED_EVERY_MS: Final = 60_000
#: Ours: different refusals remembered for that long; further ones are not logged.
KINDS_MAX: Final = 1_000


class AccessControl:
    """An Authenticator and an Authorizer based on a table of users.

    cluster: the name of this server's cluster. brokers: the access key of the cluster's brokers, and their
    accepted secrets.
    """

    permits_everything = False

    def __init__(self, users: Users, *, cluster: str, brokers: tuple[str, tuple[bytes, ...]] | None) -> None:
        self._users = users
        self._cluster = cluster
        self._brokers = brokers

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        """Return the signer of a request, or else the user in the connection's certificate.

        Raises NoPermission with Apache's messages. A signature has precedence over the certificate.
        """
        if connection.certificate_names and not fields.get(ACCESS_KEY):
            return self.by_certificate(connection)
        if not fields:
            raise refused("authentication field is null")
        name = fields.get(ACCESS_KEY)
        if not name:
            raise refused("username cannot be null.")
        user = self._users.get(name)
        if user is not None and user.is_enabled and is_right(fields, body, *user.secrets):
            return Principal(name, host_of(connection))
        brokers = self._brokers
        if brokers is not None and brokers[0] == name and is_right(fields, body, *brokers[1]):
            return Principal(name, host_of(connection), is_unrestricted=True)
        if user is None:
            raise refused(f"User:{name} is not found.")
        raise refused("check signature failed." if user.is_enabled else f"User:{name} is disabled.")

    def by_certificate(self, connection: Connection) -> Principal:
        """Return the first user whose name is exactly one of the certificate's names; raises NoPermission."""
        names = connection.certificate_names
        user = next(filter(None, map(self._users.get, names)), None)
        if user is None:
            raise refused(
                f"no user has a name of the client's certificate, which has {shown(', '.join(names))}"
            )
        if not user.is_enabled:
            raise refused(f"User:{user.name} is disabled.")
        return Principal(user.name, host_of(connection))

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        """Return the user with this name and password; raises NoPermission."""
        user = self._users.get(name)
        encoded = password.encode(errors="surrogatepass")
        secrets = user.secrets if user is not None else (b"",)
        matching = [secret for secret in secrets if hmac.compare_digest(encoded, secret)]
        if user is None or not matching or not user.is_enabled:
            raise refused("unknown user or wrong password")
        return self.signed_in(connection, user, matching[0])

    def enabled_user(self, name: str) -> User | None:
        """Return a user that may sign in."""
        user = self._users.get(name)
        return user if user is not None and user.is_enabled else None

    def signed_in(self, connection: Connection, user: User, secret: bytes) -> Principal:
        """Return the principal of a user authenticated with a secret by another protocol's mechanism."""
        return Principal(user.name, host_of(connection), proof=_proof(secret))

    def may_go_on(self, principal: Principal) -> bool:
        """Return whether a signed-in principal is still an enabled user whose password is still valid."""
        user = self.enabled_user(principal.name)
        return user is not None and principal.proof in (b"", *map(_proof, user.secrets))

    def may_be_sent_to(self, principal: Principal) -> bool:
        """Return whether a client may get unrequested data: it is anonymous, a broker, or a valid user."""
        return principal is ANONYMOUS or principal.is_unrestricted or self.may_go_on(principal)

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        """Return if any of the actions is permitted; raise NoPermission with Apache's message if none is."""
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
            raise refused(
                f"User:{user.name} has no permission to access {resource} from {principal.host}, {reason}"
            )

    def is_super(self, principal: Principal) -> bool:
        """Return whether a principal may create and change super users."""
        user = self._users.get(principal.name) if principal is not ANONYMOUS else None
        return principal.is_unrestricted or (user is not None and user.is_enabled and user.is_super)

    def _known(self, principal: Principal) -> User:
        if principal is ANONYMOUS:  # Even if a user has that name.
            raise refused("username cannot be null.")
        user = self._users.get(principal.name)
        if user is None:
            raise refused(f"User:{principal.name} not found.")
        if not user.is_enabled:
            raise refused(f"User:{principal.name} is disabled.")
        return user


def _proof(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


class DryRun:
    """An Authenticator and an Authorizer that refuse only wrong passwords and changes of the cluster."""

    permits_everything = False

    def __init__(self, access: AccessControl, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._since_ms: MonotonicMs | None = None

    def by_signature(self, connection: Connection, fields: Mapping[str, str], body: bytes) -> Principal:
        """Return the signer of a request; ANONYMOUS if neither signature nor certificate is valid."""
        try:
            return self._access.by_signature(connection, fields, body)
        except NoPermission as error:
            self._note(f"{error.remark} (from {host_of(connection)})")
            return ANONYMOUS

    def by_password(self, connection: Connection, name: str, password: str) -> Principal:
        """Return the user with this name and password; raises NoPermission."""
        return self._access.by_password(connection, name, password)

    def authorize(self, principal: Principal, resource: Resource, actions: Actions) -> None:
        """Log a refusal; raise NoPermission only if it concerns a change of the cluster."""
        try:
            self._access.authorize(principal, resource, actions)
        except NoPermission as error:
            if resource.kind is ResourceKind.CLUSTER and Action.UPDATE in actions:
                raise
            self._note(error.remark)

    def _note(self, remark: str) -> None:
        """Log a refusal unless it was logged recently; repetitions are counted."""
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
