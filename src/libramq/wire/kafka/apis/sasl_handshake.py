"""SaslHandshake (17): the mechanism by which a client will sign in.

Version 0, which bare tokens follow, is listed and not served: librdkafka 2.0 looks for it, and uses 1.
"""

from libramq.wire.kafka.schema import Int16, Message, Request, String


class SaslHandshakeRequest(Request, frozen=True, kw_only=True):
    """The mechanism."""

    mechanism: String


class SaslHandshakeResponse(Message, frozen=True, kw_only=True):
    """The mechanisms that the server has."""

    error_code: Int16 = 0
    mechanisms: tuple[String, ...] = ()
