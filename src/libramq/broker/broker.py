"""The broker, without sockets and tasks: its tables, its processors, and what it does as time passes.

A shell feeds it reads and ticks; the simulator is such a shell too.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from libramq import __version__
from libramq.broker.assigner import Assigner
from libramq.broker.cluster import Cluster
from libramq.broker.config import BrokerConfig
from libramq.broker.consumer_clients import ConsumerClients
from libramq.broker.coordination import Coordination
from libramq.broker.event_log import EventLog
from libramq.broker.group_health import GroupHealth
from libramq.broker.offset_commits import OffsetCommits
from libramq.broker.processor.pull_message import Pull
from libramq.broker.progress import Progress, ProgressFile
from libramq.broker.question import Question
from libramq.broker.runtime_info import RuntimeInfo
from libramq.broker.schedule import DelaySchedule
from libramq.broker.schedule_file import ScheduleFile
from libramq.broker.services import Services
from libramq.broker.tables import Tables
from libramq.catalog.config_file import ConfigFile
from libramq.clock import Clock, MonotonicMs, Now, read_clock
from libramq.errors import StoreError
from libramq.filesystem import FileSystem
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.queue_lock import QueueLocks
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.logs import get_logger
from libramq.offsets import OffsetLedger
from libramq.offsets.ledger import run_persist
from libramq.remoting.command import Command
from libramq.rpc.endpoint import BatchProcessor, Processor, Woken, failure
from libramq.rpc.outcome import Outcome, Reply
from libramq.secret_bits import SYSTEM_SECRETS, SecretBits
from libramq.standstill import Standstill
from libramq.store.config import Damaged, FlushDiskType, StoreConfig
from libramq.store.message_store import MessageStore
from libramq.transport.address import split_name_servers
from libramq.transport.server import Peer
from libramq.waits import HeldPull, HeldPulls

log = get_logger(__name__)

#: ScheduleMessageService, MessageStoreConfig.flushDelayOffsetInterval.
SCHEDULE_SAVE_MS: Final = 10_000
#: Ours: how often a broker that has members looks at the clock at least, to notice that it stood still.
PULSE_MS: Final = 250


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
        damaged=Damaged(config.damaged) if config.damaged else None,
    )


class Broker:
    """Everything a broker knows and decides.

    recorded: hears of rebalance events once they are stored. secret_bits: for ids that nobody may guess; only
    a simulation gives another source than the machine's.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        filesystem: FileSystem,
        randomness: random.Random,
        process_id: int = 0,
        secret_bits: SecretBits = SYSTEM_SECRETS,
        recorded: Callable[[RebalanceEvent], None] | None = None,
    ) -> None:
        self.config = config
        self._recorded = recorded
        self._clock = clock
        self.store = MessageStore(store_config(config), filesystem, clock, process_id=process_id)
        self.store.open()
        try:
            self._open(filesystem, randomness, process_id, secret_bits)
        except BaseException:
            self.store.close()
            raise

    def _open(
        self, filesystem: FileSystem, randomness: random.Random, process_id: int, secret_bits: SecretBits
    ) -> None:
        config, clock = self.config, self._clock
        self._filesystem = filesystem
        config_directory = Path(config.store_path) / "config"
        self._schedule_file = ConfigFile(filesystem, config_directory / "delayOffset.json")
        self.ledger = OffsetLedger(filesystem, config_directory)
        self.ledger.open(clock.wall_ms(), self._durable_end)
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
            record=self._record,
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
            locks=self.locks,
            clock=clock,
            secret_bits=secret_bits,
            answer=self._answers.append,
        )
        self.consumers.stock_changed = self.coordination.stock_changed
        self.health = GroupHealth(
            self.consumers, here=self.topics.queues, queues=self.coordination.queues, clock=clock
        )
        self.assigner = Assigner(
            broker_name=config.broker_name,
            consumers=self.consumers,
            queues=self.coordination.queues,
            clock=clock,
            answer=self._answers.append,
        )
        self._questions: list[Question] = []
        self._standstill = Standstill(PULSE_MS)
        self.cluster = self._open_cluster()
        self.coordination.begin(self.cluster)
        self.assigner.peers = self.cluster
        self.consumers.members_changed = self._members_changed
        self.topics.observe(self.coordination.topic_changed)
        self.topics.observe(self.assigner.topic_changed)
        self.held: HeldPulls[Pull] = HeldPulls()
        loaded = self._schedule_file.load(ScheduleFile)
        self.schedule = DelaySchedule(
            self.store,
            config.delay_levels_ms,
            loaded.offset_table if loaded else {},
            now=read_clock(clock),
        )
        self.runtime = RuntimeInfo(self.store, version=f"LibraMQ {__version__}", started_ms=clock.wall_ms())
        self._schedule_saved: dict[int, int] = dict(self.schedule.offsets)
        self.progress = self._progress_files()
        self._services = Services(
            self, clock=clock, randomness=randomness, process_id=process_id, answer=self._answers.append
        )

    # What it serves.

    def processors(self) -> Mapping[int, Processor]:
        """The processor of each request."""
        return self._services.processors()

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """The processors that take all requests of one read at once."""
        return self._services.batch_processors()

    # What happens to it.

    def closed(self, peer: Peer, now_ms: MonotonicMs) -> Reply:
        """A connection ended; whom to notify."""
        self.held.remove_owner(peer)
        self.producers.remove_peer(peer)
        notify = self.consumers.closed(peer, now=Now(wall_ms=self._clock.wall_ms(), monotonic_ms=now_ms))
        self.coordination.closed(peer)
        return Reply(notify=notify)

    def _members_changed(self, group: str) -> None:
        self.assigner.own_changed(group)
        if self.cluster is not None:
            self.cluster.members_changed(group)

    def _record(self, event: RebalanceEvent) -> None:
        self.events.record(event)
        if self._recorded is not None:
            self._recorded(event)

    def answered(self, peer: Peer, answer: Command, now_ms: MonotonicMs) -> None:
        """A client answers a question of ours."""
        self.consumers.told(peer, answer, now_ms=now_ms)

    def wake(self) -> list[Woken]:
        """The answers to held requests: pulls whose queues grew, and what others brought about."""
        answers = self._answers.copy()
        self._answers.clear()
        touched = self.store.drain_touched()
        if not touched or not len(self.held):
            return answers
        now_ms = self._clock.monotonic_ms()
        return answers + [
            self._run_again(held, self._services.pulls.wake, now_ms)
            for (topic, queue_id), end in touched.items()
            for held in self.held.wake(topic, queue_id, end)
        ]

    def coordinate(self, now_ms: MonotonicMs) -> list[Woken]:
        """Coordinated groups as time passes, at `next_due_ms` and later; the answers to held requests."""
        judges = self.cluster is not None or self.coordination.has_members
        stood_ms = self._standstill.look(now_ms, goes_on=judges)
        if stood_ms:
            log.warning("the broker stood still; members and brokers have that time again", ms=stood_ms)
            self.coordination.stood_still(stood_ms, now_ms)
        self.coordination.tick(now_ms)
        if self.cluster is not None:
            if stood_ms:
                self.cluster.stood_still(stood_ms, now_ms)
            self.cluster.tick(now_ms)
        return self.wake()

    def take_questions(self) -> list[Question]:
        """What to ask of other processes now; what comes of an answer, `wake` has."""
        questions = self._questions.copy()
        self._questions.clear()
        return questions

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """When `coordinate` has something to do next, at the earliest (monotonic); None: nothing."""
        cluster_due_ms = self.cluster.next_due_ms if self.cluster is not None else None
        times = (self.coordination.next_due_ms, cluster_due_ms, self._standstill.due_ms)
        return min((time for time in times if time is not None), default=None)

    def expire_pulls(self, now_ms: MonotonicMs) -> list[Woken]:
        """Answer the held pulls whose time is up."""
        expired = self.held.expire(now_ms)
        return [self._run_again(held, self._services.pulls.expire, now_ms) for held in expired]

    def _run_again(self, held: HeldPull[Pull], run: Callable[..., Outcome], now_ms: MonotonicMs) -> Woken:
        try:
            outcome = run(held, now_ms=now_ms)
        except Exception as error:  # A pull that fails is answered so; the others and the sender go on.
            outcome = failure(error, held.request.request)
        return Woken(held.request.request, outcome)

    def tick(self) -> Reply:
        """Once a second: silent members leave, rebalances settle, rates are sampled; whom to notify."""
        now = read_clock(self._clock)
        notify = self.consumers.expire(now=now)
        self.producers.remove_silent(now.monotonic_ms)
        self.consumers.settle(now=now)
        self.health.tick()
        self.runtime.sample(now.monotonic_ms)
        return Reply(notify=notify)

    def close(self) -> None:
        """Leave everything on disk as after a clean stop; what fails keeps none of the rest."""
        with ExitStack() as stack:
            stack.callback(self.store.close)
            stack.callback(self.ledger.abandon)
            stack.callback(self._finish_progress)
            stack.callback(self.tables.close)
            self.offsets.write()

    def _finish_progress(self) -> None:
        try:
            self.store.flush()  # Before what says that its messages are done with.
        except StoreError as error:
            log.error("how far things are done is not written; the journals stay", reason=str(error))
            return
        for file in self.progress:
            file.finish()

    # How it is put together.

    def _watched_topics(self) -> list[str]:
        """The topics whose queues at other brokers matter here."""
        parts = (self.coordination, self.assigner, self.health)
        return sorted(self.consumers.asked_topics().union(*(part.topics() for part in parts)))

    def _open_cluster(self) -> Cluster | None:
        """The other brokers; a broker without name servers has none."""
        if not self.config.namesrv_addr:
            return None
        return Cluster(
            broker_name=self.config.broker_name,
            address=self.config.address,
            name_servers=split_name_servers(self.config.namesrv_addr),
            coordination=self.coordination,
            consumers=self.consumers,
            assigner=self.assigner,
            topics=self._watched_topics,
            clock=self._clock,
            ask=self._questions.append,
        )

    def _durable_end(self, topic: str, queue_id: int) -> int:
        """Where a queue ends after recovery.

        A queue that is not there ends at 0: what the log has of it would have been found, even where its own
        files were lost. Offsets beyond would have a group skip the messages that get those numbers next.
        """
        return self.store.max_offset(topic, queue_id)

    def _progress_files(self) -> list[ProgressFile]:
        return [
            ProgressFile("delayOffset.json", SCHEDULE_SAVE_MS, self._schedule_progress, self.store),
            ProgressFile(
                "consumerOffset.json",
                self.config.flush_consumer_offset_interval_ms,
                self._offset_progress,
                self.store,
            ),
        ]

    def _schedule_progress(self) -> Progress | None:
        if self.schedule.offsets == self._schedule_saved:
            return None
        offsets = dict(self.schedule.offsets)

        def written() -> None:
            self._schedule_saved = offsets

        return Progress(
            write=lambda: self._schedule_file.save(ScheduleFile(offset_table=offsets)),
            written=written,
            failed=lambda: None,
        )

    def _offset_progress(self) -> Progress | None:
        plan = self.ledger.plan_persist(self._clock.wall_ms())
        if plan is None:
            return None
        return Progress(
            write=lambda: run_persist(self._filesystem, plan),
            written=lambda: self.ledger.complete_persist(plan),
            failed=self.ledger.fail_persist,
        )
