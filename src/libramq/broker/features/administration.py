"""The administration feature: puts together the services for operators' queries and changes."""

from libramq import __version__
from libramq.broker.config import BrokerConfig
from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.files import UpkeepFeature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.features.messages import DelayFeature, ReadingFeature
from libramq.broker.files.files import retention
from libramq.broker.processor.administration.broker_options import BrokerOptions
from libramq.broker.processor.administration.inspection import Inspection
from libramq.broker.processor.administration.runtime_info import RuntimeInfo
from libramq.broker.processor.administration.statistics import Statistics
from libramq.broker.processor.administration.topic_admin import TopicAdministration, UnreadQueues
from libramq.broker.processor.administration.users import UserAdministration
from libramq.broker.processor.groups.foreign_groups import ForeignMembers
from libramq.broker.processor.groups.group_admin import GroupAdministration
from libramq.broker.processor.groups.offset_admin import OffsetAdministration
from libramq.broker.processor.groups.reset_offset import OffsetReset


class AdministrationFeature(Feature):
    """Serves operators' requests."""

    def __init__(
        self,
        base: Base,
        groups: GroupFeature,
        reading: ReadingFeature,
        delays: DelayFeature,
        upkeep: UpkeepFeature,
    ) -> None:
        self._base, self._reading, self._old_files = base, reading.reading, upkeep.old_files
        self._timers = delays.requests
        config, kernel, throughput = base.config, base.kernel, base.throughput
        files, offsets = base.files, base.offsets
        consumers, producers, coordination = groups.consumers, groups.producers, groups.coordination
        foreign = ForeignMembers(consumers, groups.peers.view, groups.peers.ask, base.responder.answer)
        unread = UnreadQueues(base.store, offsets, consumers, may_abandon=config.abandon_unread_queues)
        self.services = [
            UserAdministration(files.tables.users, base.access, config),
            RuntimeInfo(files, throughput, f"LibraMQ {__version__}", kernel),
            BrokerOptions(config, self._changed, kernel.clock.wall_ms()),
            TopicAdministration(
                topics=base.topics,
                clients=consumers,
                removal=groups.removal,
                unread=unread,
                address=config.address,
            ),
            GroupAdministration(
                groups=base.groups, offsets=offsets, coordination=coordination, held=base.held
            ),
            OffsetReset(
                files=files,
                offsets=offsets,
                clients=consumers,
                foreign=foreign,
                coordination=coordination,
                reading=reading.reading,
            ),
            OffsetAdministration(files, offsets, consumers, foreign),
            Statistics(
                files=files,
                offsets=offsets,
                consumers=consumers,
                producers=producers,
                health=groups.health,
                throughput=throughput,
                instances=coordination.instances,
            ),
            Inspection(
                config=config,
                files=files,
                offsets=offsets,
                clients=consumers,
                producers=producers,
                throughput=throughput,
            ),
        ]

    def _changed(self, config: BrokerConfig) -> None:
        """Apply changed options to the parts that use them."""
        self._base.groups.create_on_use(config.auto_create_subscription_group)
        self._reading.poll(long=config.long_polling_enable, short_ms=config.short_polling_time_ms)
        self._old_files.retain(retention(config))
        self._timers.recall_enabled = config.recall_message_enable
