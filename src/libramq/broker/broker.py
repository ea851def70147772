"""The broker, without sockets and tasks: its tables, its processors, and what it does as time passes.

A shell feeds it reads and ticks; the simulator is such a shell too.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from libramq import __version__
from libramq.broker.config import BrokerConfig
from libramq.broker.consumer_clients import ConsumerClients
from libramq.broker.coordination import Coordination
from libramq.broker.event_log import EventLog
from libramq.broker.message_log import MessageLog
from libramq.broker.offset_commits import OffsetCommits
from libramq.broker.processor.client_management import ClientManagement
from libramq.broker.processor.consumer_offset import ConsumerOffsetRequests
from libramq.broker.processor.group_admin import GroupAdministration
from libramq.broker.processor.group_membership import GroupMembership
from libramq.broker.processor.open_queue import OpenQueue
from libramq.broker.processor.pull_message import Pull, PullMessage
from libramq.broker.processor.query_assignment import QueryAssignment
from libramq.broker.processor.queue_lock import QueueLockRequests
from libramq.broker.processor.queue_offset import QueueOffsets
from libramq.broker.processor.send_back import SendBack
from libramq.broker.processor.send_message import SendMessage
from libramq.broker.processor.statistics import Statistics
from libramq.broker.processor.topic_admin import TopicAdministration
from libramq.broker.redelivery import Redelivery
from libramq.broker.runtime_info import RuntimeInfo
from libramq.broker.schedule import DelaySchedule
from libramq.broker.schedule_file import ScheduleFile
from libramq.broker.stored_properties import BrokerProperties
from libramq.broker.tables import Tables
from libramq.catalog.config_file import ConfigFile
from libramq.clock import Clock
from libramq.codes import RequestCode as R
from libramq.filesystem import FileSystem
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.queue_lock import QueueLocks
from libramq.message.ids import UniqueIdGenerator
from libramq.offsets import OffsetLedger
from libramq.remoting.body.topic_config import PERM_READ
from libramq.remoting.command import Command
from libramq.rpc.endpoint import BatchProcessor, Processor, Woken, failure
from libramq.rpc.outcome import Outcome, Reply
from libramq.store.config import FlushDiskType, StoreConfig
from libramq.store.message_store import MessageStore
from libramq.transport.server import Peer
from libramq.waits import HeldPull, HeldPulls


def store_config(config: BrokerConfig) -> StoreConfig:
    """What the broker's configuration means for its store."""
    return StoreConfig(
        root=Path(config.store_path),
        store_host=(config.broker_ip, config.listen_port),
        mapped_file_size_commit_log=config.commit_log_file_bytes,
        mapped_file_size_consume_queue=config.consume_queue_file_bytes,
        flush_disk_type=FlushDiskType(config.flush_disk_type),
        flush_interval_commit_log_ms=config.flush_interval_ms,
        max_message_size=config.max_message_size,
    )


class Broker:
    """Everything a broker knows and decides."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        filesystem: FileSystem,
        randomness: random.Random,
        process_id: int = 0,
    ) -> None:
        self.config = config
        self._clock = clock
        self.store = MessageStore(store_config(config), filesystem, clock, process_id=process_id)
        self.store.open()
        try:
            self._open(filesystem, randomness, process_id)
        except BaseException:
            self.store.close()
            raise

    def _open(self, filesystem: FileSystem, randomness: random.Random, process_id: int) -> None:
        config, clock = self.config, self._clock
        config_directory = Path(config.store_path) / "config"
        self._schedule_file = ConfigFile(filesystem, config_directory / "delayOffset.json")
        self.ledger = OffsetLedger(filesystem, config_directory)
        self.ledger.open(clock.wall_ms())
        self._clamp_offsets()
        self.tables = Tables(config, filesystem)
        self.topics = self.tables.topics
        self.groups = self.tables.groups
        self.fences = self.tables.fences
        self.offsets = OffsetCommits(self.ledger, self.store)
        self.events = EventLog(self.store)
        self.producers: ProducerGroups[Peer] = ProducerGroups()
        self.locks = QueueLocks(grace_ms=config.orderly_lock_grace_ms)
        self.consumers = ConsumerClients(
            broker_name=config.broker_name,
            topics=self.topics,
            groups=self.groups,
            record=self.events.record,
            locks=self.locks,
            clock=clock,
            mode=self.fences.mode,
        )
        self._answers: list[Woken] = []
        self.coordination = Coordination(
            broker_name=config.broker_name,
            address=config.address,
            tables=self.tables,
            consumers=self.consumers,
            clock=clock,
            randomness=randomness,
            answer=self._answers.append,
        )
        self.consumers.stock_changed = self.coordination.stock_changed
        self.topics.observe(self.coordination.topic_changed)
        self.held: HeldPulls[Pull] = HeldPulls()
        loaded = self._schedule_file.load(ScheduleFile)
        self.schedule = DelaySchedule(
            self.store, config.delay_levels_ms, loaded.offset_table if loaded else {}
        )
        self.runtime = RuntimeInfo(self.store, version=f"LibraMQ {__version__}", started_ms=clock.wall_ms())
        self._schedule_saved: dict[int, int] = dict(self.schedule.offsets)
        self._pulls = self._pull_processor()
        self._send = self._send_processor(randomness, process_id)
        self._randomness = randomness

    # What it serves.

    def processors(self) -> Mapping[int, Processor]:
        """The processor of each request."""
        clients = ClientManagement(
            consumers=self.consumers,
            producers=self.producers,
            topics=self.topics,
            groups=self.groups,
            gone=self.coordination.closed,
        )
        membership = GroupMembership(coordination=self.coordination, groups=self.groups, topics=self.topics)
        offsets = self._offset_processor()
        opening = OpenQueue(
            fences=self.fences,
            offsets=self.offsets,
            topics=self.topics,
            held=self.held,
            answer=self._answers.append,
        )
        queues = QueueOffsets(self.store)
        locks = QueueLockRequests(
            locks=self.locks, clients=self.consumers, topics=self.topics, groups=self.groups
        )
        topics = TopicAdministration(
            topics=self.topics,
            store=self.store,
            offsets=self.offsets,
            clients=self.consumers,
            fences=self.fences,
            address=self.config.address,
        )
        groups = GroupAdministration(groups=self.groups, offsets=self.offsets, coordination=self.coordination)
        assignments = QueryAssignment(
            broker_name=self.config.broker_name,
            clients=self.consumers,
            topics=self.topics,
            groups=self.groups,
            queues=self.topics.queues,
        )
        statistics = Statistics(
            broker_name=self.config.broker_name,
            topics=self.topics,
            store=self.store,
            offsets=self.offsets,
            consumers=self.consumers,
            producers=self.producers,
        )
        send_back = SendBack(
            store=self.store,
            log=MessageLog(self.store),
            groups=self.groups,
            redelivery=Redelivery(self.topics, self._randomness),
            delay_levels_ms=self.config.delay_levels_ms,
        )
        return {
            R.PULL_MESSAGE: self._pulls.handle,
            R.LITE_PULL_MESSAGE: self._pulls.handle,
            R.CONSUMER_SEND_MSG_BACK: send_back.handle,
            R.VIEW_MESSAGE_BY_ID: queues.view_message,
            R.QUERY_CONSUMER_OFFSET: offsets.query,
            R.SEARCH_OFFSET_BY_TIMESTAMP: queues.by_timestamp,
            R.GET_MAX_OFFSET: queues.max_offset,
            R.GET_MIN_OFFSET: queues.min_offset,
            R.GET_EARLIEST_MSG_STORETIME: queues.earliest_store_time,
            R.HEART_BEAT: clients.heartbeat,
            R.UNREGISTER_CLIENT: clients.unregister,
            R.CHECK_CLIENT_CONFIG: clients.check_config,
            R.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
            R.LOCK_BATCH_MQ: locks.lock,
            R.UNLOCK_BATCH_MQ: locks.unlock,
            R.UPDATE_AND_CREATE_TOPIC: topics.create,
            R.DELETE_TOPIC_IN_BROKER: topics.delete,
            R.GET_ALL_TOPIC_CONFIG: topics.list_all,
            R.GET_TOPIC_CONFIG: topics.get,
            R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.create,
            R.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.list_all,
            R.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get,
            R.GET_TOPIC_STATS_INFO: statistics.topic_stats,
            R.GET_CONSUME_STATS: statistics.consume_stats,
            R.GET_CONSUMER_CONNECTION_LIST: statistics.consumer_connections,
            R.GET_PRODUCER_CONNECTION_LIST: statistics.producer_connections,
            R.QUERY_TOPIC_CONSUME_BY_WHO: statistics.topic_consumers,
            R.QUERY_TOPICS_BY_CONSUMER: statistics.group_topics,
            R.GET_BROKER_RUNTIME_INFO: self.runtime.handle,
            R.GROUP_JOIN: membership.join,
            R.GROUP_POLL: membership.poll,
            R.GROUP_RELEASE: membership.release,
            R.GROUP_LEAVE: membership.leave,
            R.GROUP_FIND: membership.find,
            R.OPEN_QUEUE: opening.handle,
            R.QUERY_ASSIGNMENT: assignments.query,
            R.SET_MESSAGE_REQUEST_MODE: assignments.set_mode,
        }

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """The processors that take all requests of one read at once."""
        send = self._send.handle_many
        update = self._offset_processor().update_many
        return {
            R.SEND_MESSAGE: send,
            R.SEND_MESSAGE_V2: send,
            R.SEND_BATCH_MESSAGE: send,
            R.UPDATE_CONSUMER_OFFSET: update,
        }

    # What happens to it.

    def closed(self, peer: Peer, monotonic_ms: int) -> Reply:
        """A connection ended; whom to notify."""
        self.held.remove_owner(peer)
        self.producers.remove_peer(peer)
        self.coordination.closed(peer)
        return Reply(notify=self.consumers.closed(peer, now_ms=self._clock.wall_ms()))

    def answered(self, peer: Peer, answer: Command, monotonic_ms: int) -> None:
        """A client answers a question of ours."""
        self.consumers.told(peer, answer, monotonic_ms=monotonic_ms)

    def wake(self) -> list[Woken]:
        """The answers to held requests: pulls whose queues grew, and what others brought about."""
        answers = self._answers.copy()
        self._answers.clear()
        touched = self.store.drain_touched()
        if not touched or not len(self.held):
            return answers
        wall_ms = self._clock.wall_ms()
        return answers + [
            self._run_again(held, self._pulls.wake, wall_ms)
            for (topic, queue_id), end in touched.items()
            for held in self.held.wake(topic, queue_id, end)
        ]

    def coordinate(self, monotonic_ms: int) -> list[Woken]:
        """Coordinated groups as time passes, at `next_due_ms` and later; the answers to held requests."""
        self.coordination.tick(monotonic_ms)
        return self.wake()

    @property
    def next_due_ms(self) -> int | None:
        """When `coordinate` has something to do next, at the earliest (monotonic); None: nothing."""
        return self.coordination.next_due_ms

    def expire_pulls(self, monotonic_ms: int) -> list[Woken]:
        """Answer the held pulls whose time is up."""
        expired = self.held.expire(monotonic_ms)
        if not expired:
            return []
        wall_ms = self._clock.wall_ms()
        return [self._run_again(held, self._pulls.expire, wall_ms) for held in expired]

    def _run_again(self, held: HeldPull[Pull], run: Callable[..., Outcome], wall_ms: int) -> Woken:
        try:
            outcome = run(held, wall_ms=wall_ms)
        except Exception as error:  # A pull that fails is answered so; the others and the sender go on.
            outcome = failure(error, held.request.request)
        return Woken(held.request.request, outcome)

    def tick(self) -> Reply:
        """Once a second: silent members leave, rebalances settle, rates are sampled; whom to notify."""
        wall_ms, monotonic_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        notify = self.consumers.expire(wall_ms=wall_ms, monotonic_ms=monotonic_ms)
        self.producers.remove_silent(monotonic_ms)
        self.consumers.settle(now_ms=wall_ms)
        self.runtime.sample(monotonic_ms)
        return Reply(notify=notify)

    def save_schedule(self) -> None:
        """Write how far each delay level has been delivered, if that changed."""
        if self.schedule.offsets != self._schedule_saved:
            self._schedule_saved = dict(self.schedule.offsets)
            self._schedule_file.save(ScheduleFile(offset_table=self._schedule_saved))

    def close(self) -> None:
        """Leave everything on disk as after a clean stop."""
        try:
            self.offsets.write()
            self.tables.close()
            self.save_schedule()
            self.ledger.close(self._clock.wall_ms())
        finally:
            self.store.close()

    # How it is put together.

    def _clamp_offsets(self) -> None:
        """Offsets beyond what survived a crash come back to what there is.

        After a clean stop a queue that is not there is another matter: somebody took its files away.
        """
        assert self.store.recovery is not None
        unknown_end = None if self.store.recovery.clean else 0
        changes = self.ledger.offsets.clamp(
            lambda topic, queue_id: self.store.max_offset(topic, queue_id) or unknown_end
        )
        if changes:
            self.ledger.append(changes)

    def _offset_processor(self) -> ConsumerOffsetRequests:
        return ConsumerOffsetRequests(
            offsets=self.offsets,
            fences=self.fences,
            topics=self.topics,
            groups=self.groups,
            committed=self.consumers.committed,
        )

    def _pull_processor(self) -> PullMessage:
        return PullMessage(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            clients=self.consumers,
            offsets=self.offsets,
            fences=self.fences,
            held=self.held,
            readable=bool(self.config.broker_permission & PERM_READ),
            long_polling=self.config.long_polling_enable,
            short_polling_ms=self.config.short_polling_time_ms,
        )

    def _send_processor(self, randomness: random.Random, process_id: int) -> SendMessage:
        config = self.config
        return SendMessage(
            topics=self.topics,
            groups=self.groups,
            locks=self.locks,
            log=MessageLog(self.store),
            redelivery=Redelivery(self.topics, randomness),
            properties=BrokerProperties(
                cluster=config.cluster_name, region=config.region_id, trace_on=config.trace_on
            ),
            delay_levels_ms=config.delay_levels_ms,
            message_bytes_max=config.max_message_size,
            reject_transactions=config.reject_transaction_message,
            randomness=randomness,
            unique_id=UniqueIdGenerator(config.broker_ip, process_id, self._clock, randomness),
        )
