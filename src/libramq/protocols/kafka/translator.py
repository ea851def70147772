"""The translator: decodes each Kafka request, calls its API, and sends the answers in order. Serves
ApiVersions (18), and ends connections with invalid requests.

frame ─► Call ─► API ─► Slot.answer        now or later
    └─► malformed, or not served: the connection ends, except for a newer ApiVersions (KIP-511)
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from libramq.auth.audit import AuditedAuthorizer, Changed, unrecorded
from libramq.auth.authorizer import Authorizer
from libramq.broker.broker import Broker
from libramq.catalog.requirements import Requirements
from libramq.errors import RemoteProtocolError
from libramq.filesystem import FileSystem
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work
from libramq.logs import get_logger
from libramq.protocols.kafka.answers import Answers, Slot, served_by, serves
from libramq.protocols.kafka.api00_produce import Produces
from libramq.protocols.kafka.api01_fetch import Fetches
from libramq.protocols.kafka.api02_list_offsets import OffsetLists
from libramq.protocols.kafka.api03_metadata import CreationOnUse, Metadata
from libramq.protocols.kafka.api08_offsets import OffsetRequests
from libramq.protocols.kafka.api10_groups import KafkaGroups
from libramq.protocols.kafka.api11_classic_groups import ClassicGroups
from libramq.protocols.kafka.api15_group_admin import GroupAdministration
from libramq.protocols.kafka.api17_sasl import Sasl
from libramq.protocols.kafka.api19_topics import TopicRequests
from libramq.protocols.kafka.api22_producers import Producers
from libramq.protocols.kafka.api68_modern_groups import ModernGroups
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.group_records import ClassicGroupRecords, ModernGroupRecords
from libramq.protocols.kafka.node import KafkaNodes, Node, TopicIds
from libramq.protocols.kafka.rebalances import ClassicRebalances, ModernRebalances
from libramq.secret_bits import SYSTEM_SECRETS, SecretBits
from libramq.wire.kafka.api import API_VERSIONS, APIS, Call, UnservedVersion, decode_call
from libramq.wire.kafka.apis.handshake import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.frame import encode_answer
from libramq.wire.kafka.schema import Request, encode

log = get_logger(__name__)

#: The protocol's name in the audit.
PROTOCOL: Final = "Kafka"
#: Ours: requests up to this size, a few thousand elements, are decoded at once, in a few milliseconds.
DECODED_AT_ONCE_BYTES_MAX: Final = 16 * 1024

_VERSIONS = tuple(
    ApiVersion(api_key=api.key, min_version=api.listed_from, max_version=api.last)
    for _, api in sorted(APIS.items())
)


class KafkaTranslator:
    """Serves Kafka's protocol; a `kernel.engine.Translator`. Its requests are frames.

    Call `producers.recover` before the first request. secret_bits: for unguessable ids; only a simulator
    draws them from a seed.
    """

    def __init__(
        self, broker: Broker, node: Node, filesystem: FileSystem, secret_bits: SecretBits = SYSTEM_SECRETS
    ) -> None:
        self._answers = Answers(broker.kernel.effects, broker.kernel.purgatory)
        self._effects = broker.kernel.effects
        directory = Path(broker.config.store_path) / "config"
        self.producers = Producers(
            broker.store, broker.topics, broker.kernel, filesystem, directory, secret_bits
        )
        self._authorizer: Authorizer = broker.authorizer
        self._changed: Changed = unrecorded
        if broker.audit is not None:
            self._changed = broker.audit.changed
            self._authorizer = AuditedAuthorizer(broker.authorizer, broker.audit, PROTOCOL)
        nodes = KafkaNodes(node, broker.cluster.nodes)
        ids = TopicIds(nodes.cluster)
        messages = self._messages(broker, nodes, ids)
        groups = self._groups_of(broker, nodes, ids, secret_bits)
        self._sasl = Sasl(
            broker.access,
            broker.kernel,
            secret_bits,
            audit=broker.audit,
            has_plain=broker.config.tls.mode == "enforcing",
            is_voluntary=broker.config.authorization_dry_run,
            signed_in=self._groups.client_arrived,
        )
        self._apis = served_by((self, self._sasl, *messages, *groups))

    def _messages(self, broker: Broker, nodes: KafkaNodes, ids: TopicIds) -> Sequence[object]:
        """Build the services of topics and their messages."""
        config, kernel, authorizer = broker.config, broker.kernel, self._authorizer
        store, topics, cluster = broker.store, broker.topics, broker.cluster.topics
        creation = CreationOnUse(config, topics, broker.sends.sending.creations, kernel.clock)
        lists = OffsetLists(store, Requirements(topics, broker.groups), authorizer, nodes)
        topics.observe(lists.forget)
        return [
            Metadata(nodes, ids, creation, authorizer),
            Produces(broker.sends.sending, store, self.producers, authorizer, kernel, nodes),
            self.producers,
            Fetches(broker.reads.fetching, authorizer, kernel.clock, nodes),
            lists,
            TopicRequests(config, topics, cluster, authorizer, kernel.clock, nodes, self._changed, store),
        ]

    def _groups_of(
        self, broker: Broker, nodes: KafkaNodes, ids: TopicIds, secret_bits: SecretBits
    ) -> Sequence[object]:
        """Build the services of groups, their members and their offsets."""
        kernel, grace_ms = broker.kernel, broker.config.kafka_member_grace_ms
        offsets, removal = broker.cluster.offsets, broker.members.removal
        load = broker.cluster.load
        load.begin()
        every = BrokerGroups(
            broker.groups, broker.topics, broker.members.coordination, nodes, self._authorizer, load
        )
        foreign, record = broker.members.consumers.foreign, broker.events.record
        passed_on = broker.cluster.successors, broker.cluster.copies
        classic_records = ClassicGroupRecords(every, *passed_on)
        rebalances = ClassicRebalances(every.classic, nodes, foreign, kernel, record)
        self.classic_groups = ClassicGroups(every, rebalances, classic_records, kernel, secret_bits, grace_ms)
        modern_records = ModernGroupRecords(broker.tables, every, *passed_on)
        modern_rebalances = ModernRebalances(every.modern, nodes, foreign, kernel, record)
        self.modern_groups = ModernGroups(
            every, modern_rebalances, modern_records, ids, secret_bits, kernel, grace_ms
        )
        self._held_heartbeats = self.classic_groups.held_heartbeats, self.modern_groups.held_heartbeats
        self._groups = KafkaGroups(every, self.classic_groups, self.modern_groups, kernel)
        return [
            self._groups,
            self.classic_groups,
            self.modern_groups,
            OffsetRequests(self._groups, offsets, kernel.clock, self._changed),
            GroupAdministration(every, offsets, removal, self._changed),
        ]

    def receive(self, connection: Connection, requests: Sequence[bytes], start: int) -> int:
        """Process one request; a large one is decoded on a thread first."""
        frame = requests[start]
        if self._sasl.is_too_large(connection, len(frame)):
            self._answers.end(connection, f"a request of {len(frame)} bytes before it has signed in")
        elif (reason := self._sasl.why_not_decoded(connection, frame)) is not None:
            self._answers.end(connection, reason)
        elif len(frame) > DECODED_AT_ONCE_BYTES_MAX:
            self._effects.proceed(connection, self._decode(connection, frame))
        else:
            self._decoded(connection, _call_of(frame))
        return start + 1

    def _decode(self, connection: Connection, frame: bytes) -> Work[None]:
        try:
            call = yield InThread(Thread.COMPUTE, partial(decode_call, frame))
        except Exception as error:
            call = error
        self._decoded(connection, call)

    def _decoded(self, connection: Connection, call: Call | Exception) -> None:
        if isinstance(call, UnservedVersion):
            self._refuse(connection, call)
        elif isinstance(call, RemoteProtocolError):
            self._answers.end(connection, f"a malformed Kafka request: {call}")
        elif isinstance(call, Exception):
            log.error("a Kafka request failed", peer=connection.address, exc_info=call)
            self._answers.end(connection, "a request failed")
        elif (reason := self._sasl.why_not(connection, type(call.request))) is not None:
            self._answers.end(connection, reason)
        else:
            for held_heartbeats in self._held_heartbeats:  # Answers are sent in the order of requests.
                held_heartbeats.answer_before_others(connection)
            self._serve(self._answers.open(connection, call), call.request)

    @serves(ApiVersionsRequest)
    def _api_versions(self, request: ApiVersionsRequest, slot: Slot) -> None:
        """Answer a client's first request on a connection."""
        self._groups.client_arrived(slot)
        self._answers.client_named(slot.connection, request.client_software_name)
        slot.answer(ApiVersionsResponse(api_keys=_VERSIONS))

    def _serve(self, slot: Slot, request: Request) -> None:
        try:
            self._apis[type(request)](request, slot)
        except Exception as error:
            slot.fail(error)
        else:
            self._answers.park(slot)

    def _refuse(self, connection: Connection, unserved: UnservedVersion) -> None:
        """Answer with the served versions of ApiVersions (KIP-511); end the connection for other requests."""
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


def _call_of(frame: bytes) -> Call | RemoteProtocolError:
    """Decode a request, or return the error."""
    try:
        return decode_call(frame)
    except RemoteProtocolError as malformed:
        return malformed
