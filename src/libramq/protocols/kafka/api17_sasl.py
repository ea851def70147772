"""SaslHandshake (17), SaslAuthenticate (36): a client's sign-in (PLAIN, SCRAM), and the answer to a wrong
password.

    SaslHandshake ─► mechanism ─► SaslAuthenticate, once or twice ─► Connection.principal
                                                    └─► wrong password: an error shortly after, and the end

User names cannot be probed. An unknown or disabled user gets the same answer as a wrong password, with a salt
that is the same each time (RFC 5802, section 9; PostgreSQL's servers do so), and in the same time: keys are
derived only after the client has sent its proof, and a refusal is sent at a fixed time.

The users are those of RocketMQ's clients (`auth/users.py`). PLAIN sends the password itself, so it is offered
only if all connections are encrypted. Upstream: SaslServerAuthenticator.java.
"""

import contextlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from libramq.auth.access_control import AccessControl
from libramq.auth.audit import Audit
from libramq.auth.users import User
from libramq.errors import BrokerError, ConfigError
from libramq.kernel.connection import ANONYMOUS, Connection, Principal, host_of
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked
from libramq.logs import BoundedLog, get_logger
from libramq.protocols.kafka.answers import Slot, serves
from libramq.secret_bits import SecretBits
from libramq.wire.kafka.api import APIS
from libramq.wire.kafka.apis import handshake as wire
from libramq.wire.kafka.error_code import ErrorCode

if TYPE_CHECKING:
    from scramp.core import ScramServer

log = get_logger(__name__)

PLAIN: Final = "PLAIN"
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: Ours: a request of a client that has not signed in; the longest name and password (`auth.users`) have 5 KB.
UNKNOWN_FRAME_BYTES_MAX: Final = 8 * 1024
#: Ours: a name of 255 characters, escaped, and a nonce. scramp needs a second to prepare 16 KiB (RFC 4013).
SCRAM_BYTES_MAX: Final = 1024
#: RFC 5802, section 7: client-first-message, without channel binding.
_FIRST: Final = re.compile(r"([ny],(?:a=[^,]*)?,n=)([^,]*)(,r=[^,]+)")
#: Replaces the client's name in its first message, so that the name is not prepared.
_NOBODY: Final = "nobody"
#: The length of scramp's salts.
_SALT_BYTES: Final = 32
#: Kafka's connection.failed.authentication.delay.ms, which slows down guessing without cost for others.
REFUSAL_MS: Final = 100
#: Requests that a client may make before it has signed in.
BEFORE: Final = (wire.ApiVersionsRequest, wire.SaslHandshakeRequest, wire.SaslAuthenticateRequest)
#: RFC 7677, section 4; it takes 2 ms, once for each user and mechanism.
ITERATIONS: Final = 4_096


class _Refused(Exception):
    """A client's sign-in has failed."""


@dataclass(slots=True)
class _SignIn:
    """A client's attempt. claimed: the user that it names. is_refused: the connection will end.

    first, nonce: SCRAM's first message of the client, and the server's nonce in the answer.
    """

    mechanism: str
    claimed: str = ""
    first: str = ""
    nonce: str = ""
    is_refused: bool = False


class Sasl:
    """Signs clients in. access: None if there is no access control.

    has_plain: offer PLAIN, because all connections are encrypted. is_voluntary: serve clients that have not
    signed in, for a dry run. signed_in: called after each sign-in.
    """

    def __init__(
        self,
        access: AccessControl | None,
        kernel: Kernel,
        secret_bits: SecretBits,
        *,
        has_plain: bool,
        is_voluntary: bool,
        signed_in: Callable[[Slot], None],
        audit: Audit | None = None,
    ) -> None:
        if access is not None and find_spec("scramp") is None:
            raise ConfigError(
                "kafkaListenPort with authenticationEnabled=true needs scramp: pip install 'libramq[kafka]'"
            )
        self._access = access
        self._audit = audit
        self._is_voluntary = is_voluntary
        self._signed_in = signed_in
        self._purgatory = kernel.purgatory
        self._deadlines = kernel.deadlines
        self._clock = kernel.clock
        self._secret = secret_bits.token_hex(_SALT_BYTES).encode()
        self._warn = BoundedLog(log.warning, kernel.clock.monotonic_ms)
        self._mechanisms = (*SCRAM, PLAIN) if has_plain else SCRAM
        self._under_way: dict[Connection, _SignIn] = {}
        #: SCRAM's keys by user name and mechanism: the passwords from which they were made, and the keys.
        self._keys: dict[tuple[str, str], tuple[tuple[bytes, ...], Sequence[tuple[bytes, Any]]]] = {}
        self._keys_of_nobody: dict[str, Any] = {}

    def is_too_large(self, connection: Connection, size: int) -> bool:
        """Return whether a request is too large for a client that has not signed in."""
        must_sign_in = self._access is not None and not self._is_voluntary
        is_unknown = must_sign_in and connection.principal is ANONYMOUS
        return is_unknown and size > UNKNOWN_FRAME_BYTES_MAX

    def why_not_decoded(self, connection: Connection, frame: bytes) -> str | None:
        """Return the reason if a request must not be decoded: its client has to sign in first."""
        if connection.principal is not ANONYMOUS:
            return None
        api = APIS.get(int.from_bytes(frame[:2], signed=True))
        return self.why_not(connection, api.request) if api is not None else None

    def why_not(self, connection: Connection, request: type) -> str | None:
        """Return the reason if a request is not served: no sign-in, or a user who is no longer valid."""
        access = self._access
        if access is None:
            return None
        if request in BEFORE:
            return None
        if connection.principal is ANONYMOUS:
            if self._is_voluntary:
                return None
            if not connection.certificate_names:
                return "it has not signed in; set its security.protocol"
            try:
                connection.principal = access.by_certificate(connection)
                connection.is_authenticated = True
            except BrokerError as refused:
                return refused.remark
        if access.may_go_on(connection.principal):
            return None
        return f"its user {connection.principal.name} was disabled or deleted, or has another password"

    @serves(wire.SaslHandshakeRequest)
    def handshake(self, request: wire.SaslHandshakeRequest, slot: Slot) -> None:
        """17: begin a sign-in by a mechanism."""
        connection = slot.connection
        attempt = self._under_way.get(connection)
        is_refused = attempt is not None and attempt.is_refused
        if self._access is None or connection.principal is not ANONYMOUS or is_refused:
            slot.answer(wire.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
        elif request.mechanism not in self._mechanisms:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            slot.answer(wire.SaslHandshakeResponse(error_code=code, mechanisms=self._mechanisms))
        else:
            if connection not in self._under_way:
                # Without a check for room: there is one for each connection that has not signed in.
                self._purgatory.park(Parked(connection), unlink=self._ended)
            self._under_way[connection] = _SignIn(request.mechanism)
            slot.answer(wire.SaslHandshakeResponse(mechanisms=self._mechanisms))

    @serves(wire.SaslAuthenticateRequest)
    def authenticate(self, request: wire.SaslAuthenticateRequest, slot: Slot) -> None:
        """36: take one message of the mechanism; the connection ends with the first wrong one."""
        connection, arrived_ms = slot.connection, self._clock.monotonic_ms()
        attempt = self._under_way.get(connection)
        if attempt is None or self._access is None or attempt.is_refused:
            slot.answer(wire.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
            return
        try:
            data, principal = self._step(attempt, connection, request.auth_bytes)
        except _Refused:
            if self._audit is not None:
                claimed = attempt.claimed or None
                self._audit.refused(claimed, host_of(connection), attempt.mechanism, "it could not sign in")
            self._warn("a Kafka client could not sign in", peer=connection.address, by=attempt.mechanism)
            attempt.is_refused = True
            refuse = slot.guarded(partial(_refuse, slot, attempt.mechanism))
            self._deadlines.set(arrived_ms + REFUSAL_MS, lambda _: refuse())
            return
        if principal is not None:
            connection.principal = principal
            connection.is_authenticated = True
            del self._under_way[connection]
            self._signed_in(slot)
            if self._audit is not None:
                self._audit.signed_in(principal, attempt.mechanism)
        slot.answer(wire.SaslAuthenticateResponse(auth_bytes=data))

    def _step(
        self, attempt: _SignIn, connection: Connection, message: bytes
    ) -> tuple[bytes, Principal | None]:
        assert self._access is not None
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise _Refused from None
        if attempt.mechanism != PLAIN and len(message) > SCRAM_BYTES_MAX:
            raise _Refused
        if attempt.mechanism == PLAIN:
            acts_as, _, rest = text.partition("\0")
            name, _, password = rest.partition("\0")
            attempt.claimed = name
            if acts_as not in ("", name):  # As at Kafka's brokers.
                raise _Refused
            try:
                return b"", self._access.by_password(connection, name, password)
            except BrokerError:
                raise _Refused from None
        return self._scram(attempt, connection, text)

    def _scram(self, attempt: _SignIn, connection: Connection, text: str) -> tuple[bytes, Principal | None]:
        from scramp import ScramException, ScramMechanism

        assert self._access is not None
        mechanism = ScramMechanism(attempt.mechanism)
        if not attempt.first:
            found = _FIRST.match(text)
            attempt.claimed = found[2].replace("=2C", ",").replace("=3D", "=") if found is not None else ""
            server = self._server_of_nobody(mechanism, attempt.claimed)
            try:
                answer = _first_answer(server, _FIRST.sub(rf"\1{_NOBODY}\3", text, count=1))
            except (ScramException, KeyError, ValueError):
                raise _Refused from None
            attempt.first, attempt.nonce = text, str(server.s_nonce)
            return answer.encode(), None
        user = self._access.enabled_user(attempt.claimed)
        for secret, known in self._keys_of(mechanism, user) if user is not None else ():
            server = mechanism.make_server(lambda _, known=known: known, s_nonce=attempt.nonce)
            with contextlib.suppress(ScramException, KeyError, ValueError):
                _first_answer(server, attempt.first)
                server.set_client_final(text)
                final = server.get_server_final().encode()
                assert user is not None
                return final, self._access.signed_in(connection, user, secret)
        raise _Refused

    def _server_of_nobody(self, mechanism: Any, name: str) -> "ScramServer":
        """Return a SCRAM server that answers a client's first message, whether the name exists or not."""
        keys = self._keys_of_nobody.get(mechanism.name)
        if keys is None:
            keys = mechanism.make_auth_info(self._secret.decode(), iteration_count=ITERATIONS)
            self._keys_of_nobody[mechanism.name] = keys
        salt = self._salt(mechanism, name)
        return mechanism.make_server(lambda _: (salt, *keys[1:]))

    def _salt(self, mechanism: Any, name: str) -> bytes:
        """Return the salt of a name, whether it exists or not; it changes with each start."""
        data = f"{mechanism.name} {name}".encode(errors="surrogatepass")
        return hmac.digest(self._secret, data, "sha256")[:_SALT_BYTES]

    def _keys_of(self, mechanism: Any, user: User) -> Sequence[tuple[bytes, Any]]:
        """Return a user's passwords with their SCRAM keys, which share a salt.

        A password that SCRAM forbids (RFC 4013, for example an emoji) is left out; the other one stays valid.
        """
        from scramp import ScramException

        secrets, keys = self._keys.get((user.name, mechanism.name), ((), ()))
        if secrets != user.secrets:
            keys, salt = [], self._salt(mechanism, user.name)
            for secret in user.secrets:
                with contextlib.suppress(ScramException, ValueError):
                    made = mechanism.make_auth_info(secret.decode(), iteration_count=ITERATIONS, salt=salt)
                    keys.append((secret, made))
            self._keys[user.name, mechanism.name] = user.secrets, keys
        return keys

    def _ended(self, parked: Parked) -> None:
        self._under_way.pop(parked.connection, None)


def _first_answer(server: "ScramServer", first: str) -> str:
    server.set_client_first(first)
    return str(server.get_server_first())


def _refuse(slot: Slot, mechanism: str) -> None:
    text = f"Authentication failed: wrong user or password for {mechanism}"
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    slot.answer(wire.SaslAuthenticateResponse(error_code=code, error_message=text))
    slot.drop("it could not sign in")
