"""The table of APIs: which of Kafka's requests are served, in which versions, and roughly how much memory
each takes.

The lowest versions are those of Kafka 4 (KIP-896); the highest are the last that identify topics by name
instead of id. Metadata has both, because members of KIP-848's groups identify topics by id.
"""

from typing import Final, NamedTuple

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.apis import fetch, groups, handshake, metadata, offsets, produce, topics
from libramq.wire.kafka.frame import RequestHeader, encode_answer, read_client_id
from libramq.wire.kafka.primitives import Reader
from libramq.wire.kafka.schema import Message, Request, decode, encode

API_VERSIONS: Final = 18
#: Ours: the memory of an array element, such as a partition of a fetch: a structure of some numbers, and the
#: same again in the service's input.
_ELEMENT_BYTES: Final = 400


class Api(NamedTuple):
    """A kind of request. first, last: the served versions; listed_from: the first one listed by ApiVersions;
    flexible: the first flexible version.
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
        _api(0, produce.ProduceRequest, 3, 9, 9, listed_from=0),
        _api(1, fetch.FetchRequest, 4, 12, 12),
        _api(2, fetch.ListOffsetsRequest, 1, 6, 6),
        _api(3, metadata.MetadataRequest, 0, 13, 9),
        _api(8, offsets.OffsetCommitRequest, 2, 9, 8),
        _api(9, offsets.OffsetFetchRequest, 1, 9, 6),
        _api(10, groups.FindCoordinatorRequest, 0, 4, 3),
        _api(11, groups.JoinGroupRequest, 0, 9, 6),
        _api(12, groups.HeartbeatRequest, 0, 4, 4),
        _api(13, groups.LeaveGroupRequest, 0, 5, 4),
        _api(14, groups.SyncGroupRequest, 0, 5, 4),
        _api(15, groups.DescribeGroupsRequest, 0, 6, 5),
        _api(16, groups.ListGroupsRequest, 0, 5, 3),
        _api(17, handshake.SaslHandshakeRequest, 1, 1, 2, listed_from=0),
        _api(API_VERSIONS, handshake.ApiVersionsRequest, 0, 4, 3),
        _api(19, topics.CreateTopicsRequest, 2, 6, 5),
        _api(20, topics.DeleteTopicsRequest, 1, 5, 4),
        _api(21, topics.DeleteRecordsRequest, 0, 2, 2),
        _api(22, produce.InitProducerIdRequest, 0, 5, 2),
        _api(32, topics.DescribeConfigsRequest, 1, 4, 4),
        _api(33, topics.AlterConfigsRequest, 0, 2, 2),
        _api(36, handshake.SaslAuthenticateRequest, 0, 2, 2),
        _api(37, topics.CreatePartitionsRequest, 0, 3, 2),
        _api(42, groups.DeleteGroupsRequest, 0, 2, 2),
        _api(44, topics.IncrementalAlterConfigsRequest, 0, 1, 1),
        _api(47, offsets.OffsetDeleteRequest, 0, 0, 1),
        _api(68, groups.ConsumerGroupHeartbeatRequest, 0, 1, 0),
        _api(69, groups.ConsumerGroupDescribeRequest, 0, 1, 0),
    )
}


class UnservedVersion(RemoteProtocolError):
    """A request in an unserved version."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"Kafka's request {header.api_key} in version {header.version} is not served")
        self.header = header


class Call(NamedTuple):
    """A request with its header. cost_bytes: the approximate memory of its structures."""

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
    header = RequestHeader(reader.int16(), reader.int16(), reader.int32())
    api = APIS.get(header.api_key)
    if api is None or not api.first <= header.version <= api.last:
        raise UnservedVersion(header)
    is_flexible = api.is_flexible(header.version)
    client_id = read_client_id(reader, is_flexible=is_flexible)
    request = decode(api.request, header.version, is_flexible, reader)
    if api.request is not metadata.MetadataRequest:
        # In version 9, librdkafka 2.16 requests all topics with three bytes too many; Kafka ignores trailing
        # bytes of every request.
        reader.finish()
    return Call(header, api, request, client_id, reader.elements * _ELEMENT_BYTES)
