"""A remoting command: one request or reply as carried in a frame, the version and language it states, and the
form of its header (JSON or binary; a reply uses its request's).

Upstream: remoting/protocol/RemotingCommand.java, LanguageCode.java, MQVersion.java.
"""

from enum import IntEnum
from typing import Final

import msgspec

FLAG_RESPONSE: Final = 0b01
FLAG_ONEWAY: Final = 0b10

#: The version that we announce: MQVersion.V5_3_3, the release whose behaviour is the oracle.
VERSION: Final = 479
LANGUAGE: Final = "PYTHON"


#: MQVersion.V5_0_0_SNAPSHOT: brokers of this version and later support timers and POP.
VERSION_5_0: Final = 412
#: MQVersion.V4_0_0_SNAPSHOT. Since then each release has two numbers, the first one for its snapshot.
_VERSION_4_0: Final = 212


def version_name(version: int) -> str:
    """Return the release of a version number: 4.9.7 for 407."""
    if version < _VERSION_4_0:
        return "before 4.0"
    major, patch = divmod((version - _VERSION_4_0) // 2, 100)
    return f"{4 + major}.{patch // 10}.{patch % 10}"


class Serialization(IntEnum):
    """The encoding of a header (SerializeType.java)."""

    JSON = 0
    ROCKETMQ = 1


class Command(msgspec.Struct, kw_only=True, gc=False):
    """One request or reply.

    opaque pairs a reply with its request. ext has the fields of the typed header, as text. serialization is
    the header form in which the command came or will be sent; a reply uses that of its request.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext: dict[str, str] = {}
    body: bytes = b""
    language: str = LANGUAGE
    version: int = VERSION
    serialization: int = Serialization.JSON

    @property
    def is_response(self) -> bool:
        """Return whether this answers a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Return whether the sender expects no reply."""
        return self.flag & FLAG_ONEWAY != 0


def reply_to(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """Build the reply to a request, in the request's serialisation."""
    return Command(
        code=code,
        opaque=request.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        ext=ext if ext is not None else {},
        body=body,
        serialization=request.serialization,
    )
