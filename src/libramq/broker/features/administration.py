"""The administration feature, which puts together the services for operators' queries and changes; and
upkeep: writing tables, removing old files of the log, and closing all files last.
"""

from libramq import __version__
from libramq.broker.config import BrokerConfig
from libramq.broker.features.feature import Base, Feature
from libramq.broker.features.groups import GroupFeature
from libramq.broker.features.messages import DelayFeature, ReadingFeature
from libramq.broker.files.files import retention
from libramq.broker.files.old_files import OldFiles
from libramq.broker.files.persistence import Persistence
from libramq.broker.processor.administration.broker_options import BrokerOptions
from libramq.broker.processor.administration.cleaning import CleaningRequests
from libramq.broker.processor.administration.runtime_info import RuntimeInfo
from libramq.broker.processor.administration.statistics import Statistics
from libramq.broker.processor.administration.topic_admin import TopicAdministration, UnreadQueues
from libramq.broker.processor.administration.users import UserAdministration
from libramq.broker.processor.groups.group_admin import GroupAdministration
from libramq.broker.processor.groups.offset_admin import ForeignMembers, OffsetAdministration
from libramq.kernel.engine import Hooks


class UpkeepFeature(Feature):
    """Keeps the files of all features, and is closed last."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.old_files = OldFiles(base.store, retention(base.config), base.kernel)
        persistence = Persistence(base.files, base.kernel)
        requests = CleaningRequests(base.files, base.offsets, self.old_files, base.responder.answer)
        self.services = [requests]
        # What a slave has to write depends on other brokers, too.
        settle = [persistence.look] if base.config.is_slave else []
        self.hooks = Hooks(settle=settle, ticked=[persistence.look, self.old_files.look])

    def close(self) -> None:
        """Write everything, and close the store."""
        try:
            if self._base.store.lost is None:
                self._base.offsets.write()
        finally:
            self._base.files.close()


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
            OffsetAdministration(
                files=files,
                offsets=offsets,
                clients=consumers,
                foreign=foreign,
                coordination=coordination,
                reading=reading.reading,
            ),
            Statistics(
                files=files,
                offsets=offsets,
                consumers=consumers,
                producers=producers,
                health=groups.health,
                throughput=throughput,
                instances=coordination.instances,
                address=config.address,
            ),
        ]

    def _changed(self, config: BrokerConfig) -> None:
        """Apply changed options to the parts that use them."""
        self._base.groups.create_on_use(config.auto_create_subscription_group)
        self._reading.poll(long=config.long_polling_enable, short_ms=config.short_polling_time_ms)
        self._old_files.retain(retention(config))
        self._timers.recall_enabled = config.recall_message_enable
