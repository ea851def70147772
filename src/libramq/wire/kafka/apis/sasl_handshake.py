"""SaslHandshake (17): the mechanism by which a client will sign in. Bare tokens would follow version 0."""

from libramq.wire.kafka.schema import Int16, Message, Request, String


class SaslHandshakeRequest(Request, frozen=True, kw_only=True):
    """The mechanism."""

    mechanism: String


class SaslHandshakeResponse(Message, frozen=True, kw_only=True):
    """The mechanisms that the server has."""

    error_code: Int16 = 0
    mechanisms: tuple[String, ...] = ()
