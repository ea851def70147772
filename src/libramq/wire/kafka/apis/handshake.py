"""The requests that open a connection: ApiVersions, SaslHandshake, SaslAuthenticate."""

from typing import Annotated

from libramq.wire.kafka.schema import (
    Bytes,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Request,
    String,
    Versions,
)

# ApiVersions (18): the requests that this broker serves, and in which versions.
#
# Version 3 is flexible (KIP-511). A version that is too new is answered in the form of version 0, so that the
# client retries. 4 changed only features, of which there are none.


class ApiVersionsRequest(Request, frozen=True, kw_only=True):
    """A client's first question."""

    client_software_name: Annotated[String, Versions(3)] = ""
    client_software_version: Annotated[String, Versions(3)] = ""


class ApiVersion(Message, frozen=True, kw_only=True):
    """The versions of one API."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


class ApiVersionsResponse(Message, frozen=True, kw_only=True):
    """All served APIs."""

    error_code: Int16 = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: Annotated[Int32, Versions(1)] = 0


# SaslHandshake (17): the mechanism by which a client will sign in.
#
# Version 0, followed by bare tokens, is listed but not served: librdkafka 2.0 looks for it, and uses 1.


class SaslHandshakeRequest(Request, frozen=True, kw_only=True):
    """The mechanism."""

    mechanism: String


class SaslHandshakeResponse(Message, frozen=True, kw_only=True):
    """The mechanisms that the server has."""

    error_code: Int16 = 0
    mechanisms: tuple[String, ...] = ()


# SaslAuthenticate (36): a mechanism's message, and its answer. 1 adds a session lifetime, 2 is flexible.
class SaslAuthenticateRequest(Request, frozen=True, kw_only=True):
    """The client's message."""

    auth_bytes: Bytes


class SaslAuthenticateResponse(Message, frozen=True, kw_only=True):
    """The server's message; session_lifetime_ms: 0 if the client need not sign in again."""

    error_code: Int16 = 0
    error_message: NullableString = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, Versions(1)] = 0
