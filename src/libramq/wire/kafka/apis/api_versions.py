"""ApiVersions (18): which requests this broker answers, and in which versions.

Version 3 is flexible (KIP-511). A version that is too new is answered in the form of version 0, so that the
client tries again. 4 changed features only, of which there are none.
"""

from typing import Annotated

from libramq.wire.kafka.schema import Int16, Int32, Message, Request, String, Versions


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
    """Everything that is answered."""

    error_code: Int16 = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
