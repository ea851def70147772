"""The parts of a broker that answer operators."""

from collections.abc import Sequence
from typing import Any

from libramq.auth.authorizer import Authorizer
from libramq.broker.cluster.replication import Replication
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles, retention
from libramq.broker.files.old_files import OldFiles
from libramq.broker.files.tables import Tables
from libramq.broker.group_parts import GroupParts
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.topic_removal import TopicRemoval
from libramq.broker.messages.reading import Pull, Reading
from libramq.broker.metrics.throughput import Throughput
from libramq.broker.processor.administration.broker_options import BrokerOptions
from libramq.broker.processor.administration.inspection import Inspection
from libramq.broker.processor.administration.statistics import Statistics
from libramq.broker.processor.administration.topic_admin import TopicAdministration, UnreadQueues
from libramq.broker.processor.cluster.ha_info import HAInfoRequests
from libramq.broker.processor.cluster.ha_status import HAStatusRequests
from libramq.broker.processor.cluster.slave_tables import SlaveTables
from libramq.broker.processor.groups.client_calls import ClientCalls
from libramq.broker.processor.groups.group_admin import GroupAdministration
from libramq.broker.processor.groups.offset_admin import OffsetAdministration
from libramq.broker.processor.groups.reset_offset import OffsetReset
from libramq.broker.processor.messages.reply_message import ReplyMessages
from libramq.broker.processor.messages.send_message import SendMessage
from libramq.clock import Clock
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.rpc.endpoint import Answered
from libramq.rpc.responder import Responder
from libramq.store.message_store import MessageStore
from libramq.waits import HeldPulls


def administration_services(
    config: BrokerConfig,
    tables: Tables,
    parts: GroupParts,
    *,
    store: MessageStore,
    offsets: OffsetCommits,
    held: HeldPulls[Pull],
    reading: Reading,
    removal: TopicRemoval,
    throughput: Throughput,
    clock: Clock,
) -> Sequence[Any]:
    """Return the services, built from a broker's other parts."""
    topics, groups = tables.topics, tables.groups
    return [
        TopicAdministration(
            topics=topics,
            clients=parts.consumers,
            removal=removal,
            unread=UnreadQueues(store, offsets, parts.consumers, may_abandon=config.abandon_unread_queues),
            address=config.address,
        ),
        GroupAdministration(groups=groups, offsets=offsets, coordination=parts.coordination, held=held),
        OffsetReset(
            store=store,
            tables=tables,
            offsets=offsets,
            clients=parts.consumers,
            coordination=parts.coordination,
            reading=reading,
        ),
        OffsetAdministration(topics=topics, store=store, offsets=offsets, clients=parts.consumers),
        Statistics(
            broker_name=config.broker_name,
            topics=topics,
            store=store,
            offsets=offsets,
            consumers=parts.consumers,
            producers=parts.producers,
            health=parts.health,
            throughput=throughput,
            instances=parts.coordination.instances,
            foreign=parts.foreign,
        ),
        Inspection(
            address=config.address,
            topics=topics,
            groups=groups,
            store=store,
            offsets=offsets,
            clients=parts.consumers,
            producers=parts.producers,
            throughput=throughput,
            clock=clock,
        ),
    ]


def replication_services(config: BrokerConfig, files: BrokerFiles, replication: Replication) -> Sequence[Any]:
    """Build what answers slaves, and questions about them."""
    return [
        SlaveTables(files.ledger, files.store.deletions, files.tables.request_modes, files.delay_answer),
        HAStatusRequests(files.store, replication.service),
        HAInfoRequests(config, files.store, replication.slave),
    ]


def broker_options(
    config: BrokerConfig, tables: Tables, reading: Reading, old_files: OldFiles, clock: Clock
) -> BrokerOptions:
    """Return the service that shows and changes options, with the parts that heed them."""

    def changed(config: BrokerConfig) -> None:
        tables.groups.create_on_use(config.auto_create_subscription_group)
        reading.poll(long=config.long_polling_enable, short_ms=config.short_polling_time_ms)
        old_files.retain(retention(config))

    return BrokerOptions(config, changed, clock.wall_ms())


def client_calls(
    tables: Tables,
    parts: GroupParts,
    store: MessageStore,
    authorizer: Authorizer,
    kernel: Kernel,
    responder: Responder,
    otherwise: Answered,
) -> ClientCalls:
    """Return the service that asks members; otherwise: takes the answers to requests of others."""
    return ClientCalls(
        clients=parts.consumers,
        topics=tables.topics,
        groups=tables.groups,
        store=store,
        authorizer=authorizer,
        kernel=kernel,
        responder=responder,
        otherwise=otherwise,
    )


def replies(
    config: BrokerConfig, sends: SendMessage, producers: ProducerGroups[Connection], calls: ClientCalls
) -> ReplyMessages:
    """Return the service that passes replies on to clients."""
    return ReplyMessages(sends, producers, calls, address=config.address, stores=config.store_replies)
