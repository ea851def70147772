"""The table of APIs: which requests of Kafka's are answered, in which versions, and about how much memory one
takes.

The lowest versions are those of Kafka 4 (KIP-896); the highest are the last that name topics by names and not
by ids. Metadata has both: members of KIP-848's groups know topics by ids.
"""

from typing import Final, NamedTuple

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.apis.fetch import FetchRequest, ListOffsetsRequest
from libramq.wire.kafka.apis.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from libramq.wire.kafka.apis.handshake import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from libramq.wire.kafka.apis.metadata import MetadataRequest
from libramq.wire.kafka.apis.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from libramq.wire.kafka.apis.produce import InitProducerIdRequest, ProduceRequest
from libramq.wire.kafka.apis.topics import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from libramq.wire.kafka.frame import RequestHeader, encode_answer, read_client_id, read_header
from libramq.wire.kafka.primitives import Reader
from libramq.wire.kafka.schema import Message, Request, decode, encode

API_VERSIONS: Final = 18
#: Ours: the memory of an element of an array, such as a partition of a fetch: a structure of some numbers,
#: once more as what a service is asked.
_ELEMENT_BYTES: Final = 400


class Api(NamedTuple):
    """A kind of request. first, last: the served versions; listed_from: the first in the answer to
    ApiVersions; flexible: the first flexible version.
    """

    key: int
    request: type[Request]
    first: int
    last: int
    flexible: int
    listed_from: int

    def is_flexible(self, version: int) -> bool:
        """Return whether a version has compact lengths and tagged fields."""
        return version >= self.flexible


def _api(
    key: int, request: type[Request], first: int, last: int, flexible: int, listed_from: int | None = None
) -> Api:
    return Api(key, request, first, last, flexible, first if listed_from is None else listed_from)


APIS: Final = {
    api.key: api
    for api in (
        _api(0, ProduceRequest, 3, 9, 9, listed_from=0),
        _api(1, FetchRequest, 4, 12, 12),
        _api(2, ListOffsetsRequest, 1, 6, 6),
        _api(3, MetadataRequest, 0, 13, 9),
        _api(8, OffsetCommitRequest, 2, 9, 8),
        _api(9, OffsetFetchRequest, 1, 9, 6),
        _api(10, FindCoordinatorRequest, 0, 4, 3),
        _api(11, JoinGroupRequest, 0, 9, 6),
        _api(12, HeartbeatRequest, 0, 4, 4),
        _api(13, LeaveGroupRequest, 0, 5, 4),
        _api(14, SyncGroupRequest, 0, 5, 4),
        _api(15, DescribeGroupsRequest, 0, 6, 5),
        _api(16, ListGroupsRequest, 0, 5, 3),
        _api(17, SaslHandshakeRequest, 1, 1, 2, listed_from=0),
        _api(API_VERSIONS, ApiVersionsRequest, 0, 4, 3),
        _api(19, CreateTopicsRequest, 2, 6, 5),
        _api(20, DeleteTopicsRequest, 1, 5, 4),
        _api(21, DeleteRecordsRequest, 0, 2, 2),
        _api(22, InitProducerIdRequest, 0, 5, 2),
        _api(32, DescribeConfigsRequest, 1, 4, 4),
        _api(33, AlterConfigsRequest, 0, 2, 2),
        _api(36, SaslAuthenticateRequest, 0, 2, 2),
        _api(37, CreatePartitionsRequest, 0, 3, 2),
        _api(42, DeleteGroupsRequest, 0, 2, 2),
        _api(44, IncrementalAlterConfigsRequest, 0, 1, 1),
        _api(47, OffsetDeleteRequest, 0, 0, 1),
        _api(68, ConsumerGroupHeartbeatRequest, 0, 1, 0),
        _api(69, ConsumerGroupDescribeRequest, 0, 1, 0),
    )
}


class UnservedVersion(RemoteProtocolError):
    """A request in a version that is not served."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"Kafka's request {header.api_key} in version {header.version} is not served")
        self.header = header


class Call(NamedTuple):
    """A request with its header. cost_bytes: about the memory of its structures."""

    header: RequestHeader
    api: Api
    request: Request
    client_id: str | None
    cost_bytes: int = 0

    def answer(self, response: Message) -> bytes:
        """Encode the frame of the answer."""
        key, version, correlation_id = self.header
        is_flexible = self.api.is_flexible(version)
        body = encode(response, version, is_flexible)
        return encode_answer(correlation_id, body, has_tags=is_flexible and key != API_VERSIONS)


def decode_call(frame: bytes) -> Call:
    """Decode a request; raises UnservedVersion, or RemoteProtocolError for a malformed one."""
    reader = Reader(frame)
    header = read_header(reader)
    api = APIS.get(header.api_key)
    if api is None or not api.first <= header.version <= api.last:
        raise UnservedVersion(header)
    is_flexible = api.is_flexible(header.version)
    client_id = read_client_id(reader, is_flexible=is_flexible)
    request = decode(api.request, header.version, is_flexible, reader)
    if api.request is not MetadataRequest:
        # librdkafka 2.16 asks for all topics in version 9 with three bytes too many; Kafka ignores the rest
        # of every request.
        reader.finish()
    return Call(header, api, request, client_id, reader.elements * _ELEMENT_BYTES)
