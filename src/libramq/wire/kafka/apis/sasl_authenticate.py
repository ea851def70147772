"""SaslAuthenticate (36): a message of a mechanism, and its answer. 1 has a session's time, 2 is flexible."""

from typing import Annotated

from libramq.wire.kafka.schema import Bytes, Int16, Int64, Message, NullableString, Request, Versions


class SaslAuthenticateRequest(Request, frozen=True, kw_only=True):
    """The client's message."""

    auth_bytes: Bytes


class SaslAuthenticateResponse(Message, frozen=True, kw_only=True):
    """The server's message; session_lifetime_ms: 0: the client need not sign in again."""

    error_code: Int16 = 0
    error_message: NullableString = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, Versions(1)] = 0
