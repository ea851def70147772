"""The translator: decodes each request, calls its API, and sends the answers in order.

frame ─► Call ─► API ─► Slot.answer        now or later
    └─► malformed, or not served: the connection ends, except for a too new ApiVersions (KIP-511)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from libramq.broker.broker import Broker
from libramq.errors import RemoteProtocolError
from libramq.filesystem import FileSystem
from libramq.kernel.connection import Connection
from libramq.protocols.kafka.answers import Answers, Slot
from libramq.protocols.kafka.fetch import Fetches
from libramq.protocols.kafka.groups import GroupRequests
from libramq.protocols.kafka.list_offsets import OffsetLists
from libramq.protocols.kafka.metadata import Metadata
from libramq.protocols.kafka.node import Node
from libramq.protocols.kafka.offsets import OffsetRequests
from libramq.protocols.kafka.produce import Produces
from libramq.protocols.kafka.producers import Producers
from libramq.protocols.kafka.topics import TopicRequests
from libramq.secret_bits import SYSTEM_SECRETS, SecretBits
from libramq.wire.kafka.api import API_VERSIONS, APIS, UnservedVersion, decode_call
from libramq.wire.kafka.apis.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.frame import encode_answer
from libramq.wire.kafka.schema import encode

Serve = Callable[[Any, Slot], None]

_VERSIONS = tuple(
    ApiVersion(api_key=api.key, min_version=api.listed_from, max_version=api.last)
    for _, api in sorted(APIS.items())
)


class KafkaTranslator:
    """Serves Kafka's protocol; a `kernel.engine.Translator`. Its requests are frames.

    Call `producers.recover` before the first request. secret_bits: for ids that must not be guessed; only a
    simulator draws them from a seed.
    """

    def __init__(
        self, broker: Broker, node: Node, filesystem: FileSystem, secret_bits: SecretBits = SYSTEM_SECRETS
    ) -> None:
        kernel = broker.kernel
        self._answers = Answers(kernel.effects, kernel.purgatory)
        self._apis: dict[type, Serve] = {ApiVersionsRequest: _api_versions}
        self.producers = Producers(broker, filesystem, secret_bits)
        self.groups = GroupRequests(broker, node, secret_bits)
        for services in (
            Metadata(broker, node),
            Produces(broker, self.producers),
            self.producers,
            Fetches(broker),
            OffsetLists(broker),
            TopicRequests(broker),
            self.groups,
            OffsetRequests(broker, self.groups),
        ):
            served: Mapping[type, Serve] = services.apis()
            self._apis.update(served)

    def receive(self, connection: Connection, requests: Sequence[bytes], start: int) -> int:
        """Work off one request."""
        try:
            call = decode_call(requests[start])
        except UnservedVersion as unserved:
            self._refuse(connection, unserved)
            return start + 1
        except RemoteProtocolError as malformed:
            self._answers.end(connection, f"a malformed Kafka request: {malformed}")
            return start + 1
        slot = self._answers.open(connection, call)
        try:
            self._apis[type(call.request)](call.request, slot)
        except Exception as error:
            slot.fail(error)
            return start + 1
        self._answers.park(slot)
        return start + 1

    def _refuse(self, connection: Connection, unserved: UnservedVersion) -> None:
        """Answer which versions of ApiVersions are served (KIP-511); end the connection for any other
        request.
        """
        header = unserved.header
        if header.api_key != API_VERSIONS or header.version < 0:
            self._answers.end(connection, str(unserved))
            return
        response = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=tuple(each for each in _VERSIONS if each.api_key == API_VERSIONS),
        )
        body = encode(response, 0, False)
        self._answers.open(connection, None).send(encode_answer(header.correlation_id, body, has_tags=False))


def _api_versions(request: ApiVersionsRequest, slot: Slot) -> None:
    slot.answer(ApiVersionsResponse(api_keys=_VERSIONS))
