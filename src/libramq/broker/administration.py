"""The parts of a broker that answer operators."""

from collections.abc import Sequence
from typing import Any

from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.tables import Tables
from libramq.broker.group_parts import GroupParts
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.reading import Pull
from libramq.broker.metrics.throughput import Throughput
from libramq.broker.processor.group_admin import GroupAdministration
from libramq.broker.processor.ha_status import HAStatusRequests
from libramq.broker.processor.inspection import Inspection
from libramq.broker.processor.offset_admin import OffsetAdministration
from libramq.broker.processor.slave_tables import SlaveTables
from libramq.broker.processor.statistics import Statistics
from libramq.broker.processor.topic_admin import TopicAdministration
from libramq.clock import Clock
from libramq.replication.ha_service import HAService
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
    throughput: Throughput,
    clock: Clock,
) -> Sequence[Any]:
    """Return the services, built from a broker's other parts."""
    topics, groups = tables.topics, tables.groups
    return [
        TopicAdministration(
            topics=topics,
            store=store,
            offsets=offsets,
            clients=parts.consumers,
            coordination=parts.coordination,
            held=held,
            address=config.address,
        ),
        GroupAdministration(groups=groups, offsets=offsets, coordination=parts.coordination, held=held),
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


def replication_services(files: BrokerFiles, ha: HAService) -> Sequence[Any]:
    """Build what answers slaves, and questions about them."""
    return [SlaveTables(files.ledger, files.schedule), HAStatusRequests(files.store, ha)]
