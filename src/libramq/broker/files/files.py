"""The broker's files: in which order the store, offsets, tables and schedules below its directory are opened,
how often each is saved, and which losses are reported (of offsets, of topics).
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from libramq.batches.formats import FORMATS
from libramq.broker.config import MESSAGE_BYTES_MAX, BrokerConfig
from libramq.broker.files.beginnings import FILE_NAME as BEGINNINGS
from libramq.broker.files.beginnings import SAVE_MS as BEGINNINGS_SAVE_MS
from libramq.broker.files.beginnings import Beginnings
from libramq.broker.files.delay_schedule import DelayAnswer, DelaySchedule, ScheduleFile
from libramq.broker.files.message_log import MessageLog
from libramq.broker.files.passed_on_file import SAVE_MS as PASSED_ON_SAVE_MS
from libramq.broker.files.passed_on_file import PassedOnFile
from libramq.broker.files.pop_state import PopState
from libramq.broker.files.progress import DocumentSource, ProgressFile, Source
from libramq.broker.files.slave_commits import FILE_NAME as SLAVE_COMMITS
from libramq.broker.files.slave_commits import CommitsAtSlave
from libramq.broker.files.tables import Tables
from libramq.catalog.config_file import ConfigFile
from libramq.catalog.destinations import Destinations
from libramq.catalog.topic_attributes import is_of_batches
from libramq.clock import Clock
from libramq.errors import BrokerError, StoreError
from libramq.filesystem import FileSystem, make_directory
from libramq.logs import get_logger
from libramq.message import names
from libramq.message.names import REVIVE_TOPIC_PREFIX, TIMER_TOPIC, TRANSACTION_GROUP, is_system_topic
from libramq.offsets.ledger import OffsetLedger
from libramq.pop.passed_on import PassedOn
from libramq.store.config import Damaged, FlushDiskType, StoreConfig
from libramq.store.key_index import KeyIndex
from libramq.store.message_store import MessageStore
from libramq.store.retention import NEVER_PERCENT, Retention
from libramq.timers.delivered_copies import DeliveredCopies
from libramq.timers.timer_checkpoint import TimerDirectory
from libramq.timers.timer_files import TimerFiles
from libramq.timers.timers import Again, TimerOptions

log = get_logger(__name__)

#: Ours: commits of a slave per answer; later answers have the others.
COMMITS_ANSWERED_MAX: Final = 1_000
#: MessageStoreConfig.timerFlushIntervalMs.
TIMERS_SAVE_MS: Final = 1_000
#: ScheduleMessageService, MessageStoreConfig.flushDelayOffsetInterval.
SCHEDULE_SAVE_MS: Final = 10_000
#: BrokerController.initializeBrokerScheduledTasks.
FILTERS_SAVE_MS: Final = 10_000


def store_config(config: BrokerConfig) -> StoreConfig:
    """Return the store's configuration, from the broker's."""
    return StoreConfig(
        root=Path(config.store_path),
        commit_log=Path(config.commit_log_path) if config.commit_log_path else None,
        store_host=(config.broker_ip, config.listen_port),
        mapped_file_size_commit_log=config.commit_log_file_bytes,
        mapped_file_size_consume_queue=config.consume_queue_file_bytes,
        flush_disk_type=FlushDiskType(config.flush_disk_type),
        flush_interval_commit_log_ms=config.flush_interval_ms,
        # maxMessageSize limits producers. A message once accepted is stored again, whatever the limit is
        # then.
        max_message_size=MESSAGE_BYTES_MAX,
        in_memory_bytes=config.in_memory_bytes,
        light_queues_max=config.max_lmq_consume_queue_num if config.has_light_queues else 0,
        is_copy=config.is_slave,
        damaged=Damaged(config.damaged) if config.damaged else None,
    )


def retention(config: BrokerConfig) -> Retention:
    """Return the broker's retention of messages."""
    forcibly = config.disk_space_clean_forcibly_ratio
    return Retention(
        file_reserved_hours=config.file_reserved_hours,
        delete_hours=config.delete_hours,
        disk_max_used_percent=config.disk_max_used_space_ratio,
        clean_forcibly_percent=forcibly if config.clean_file_forcibly_enable else NEVER_PERCENT,
        files_per_round_max=config.delete_file_batch_max,
    )


def timer_options(config: BrokerConfig) -> TimerOptions:
    """Return the broker's options for timer messages."""
    return TimerOptions(
        enabled=config.timer_wheel_enable,
        precision_ms=config.timer_precision_ms,
        max_delay_ms=config.timer_max_delay_sec * 1000,
        roll_window_slots=config.timer_roll_window_slot,
        messages_per_slot_max=config.timer_congest_num_each_slot,
    )


class BrokerFiles:
    """All files below the broker's directory, open; raises StoreLocked, StoreCorrupt and similar errors."""

    def __init__(
        self, config: BrokerConfig, *, clock: Clock, filesystem: FileSystem, process_id: int
    ) -> None:
        self.filesystem = filesystem
        self._config = config
        self._clock = clock
        self.store = MessageStore(
            store_config(config), filesystem, clock, process_id=process_id, batch_format=FORMATS
        )
        self.store.open()
        try:
            self._open()
        except BaseException:
            self.store.close()
            raise

    def _opened_ledger(self, config_directory: Path) -> OffsetLedger:
        make_directory(self.filesystem, config_directory)
        ahead, has_light = self.tables.commits_ahead, self._config.has_light_queues
        ledger = OffsetLedger(self.filesystem, config_directory, ahead, has_light=has_light)
        # Transactions before the group's offsets have ended. If the offsets are lost, the ends may be lost
        # too, and then a check asks the producers.
        begins_again = "" if self._config.is_slave else TRANSACTION_GROUP
        # A missing queue ends at 0: recovery would have found its messages in the log. With an offset beyond
        # its end, a group would skip the new messages that get those numbers.
        has_offsets = ledger.open(self._clock.wall_ms(), self.store.max_offset, begins_again)
        topics = self.store.topics()
        if topics and not has_offsets:
            log.warning("there are messages and no consumerOffset.json: all groups begin anew")
        own = [topic for topic in topics if not is_system_topic(topic)]
        if own and not any(topic in self.tables.topics for topic in own):
            log.warning("topics.json has none of the store's topics; make them again", topics=len(own))
        return ledger

    def _open(self) -> None:
        config_directory = Path(self._config.store_path) / "config"
        self.tables = Tables(self._config, self.filesystem, clock=self._clock)
        self.ledger = self._opened_ledger(config_directory)
        self._forget_lost_pops()
        for topic in self.tables.topics:
            self._topic_changed(topic.topic_name)
        self.tables.topics.observe(self._topic_changed)
        recovery = self.store.recovery
        if self._config.flush_disk_type == "ASYNC_FLUSH" and recovery is not None and not recovery.clean:
            self.tables.fences.doubt_openings(self.store.max_offset)
        schedule_file = ConfigFile(self.filesystem, config_directory / "delayOffset.json")
        self.destinations = Destinations(self.tables.topics, self.store.deletions.end_of)
        loaded = schedule_file.load(ScheduleFile)
        self.schedule = DelaySchedule(
            self.store,
            self._config.delay_levels_ms,
            loaded.offset_table if loaded else {},
            loaded.level_accounts if loaded else {},
            self.destinations,
            clock=self._clock,
        )
        self._schedule_source = DocumentSource(
            schedule_file, lambda: self.schedule.version, self.schedule.content
        )
        self.log = MessageLog(self.store, waits_for_slaves=self._config.waits_for_slaves)
        #: Whether POP uses retry topic names that cannot be another group's.
        self.has_new_retry_names = self._config.enable_retry_topic_v2
        self.passed_on = PassedOnFile(self.filesystem, config_directory)
        self.at_slave = CommitsAtSlave(self.filesystem, config_directory, self.store)
        self.beginnings = Beginnings(self.filesystem, config_directory, self.ledger.offsets)
        timer_directory = TimerDirectory(
            self.filesystem, Path(self._config.store_path), self._config.timer_log_file_bytes
        )
        journal_end = self.store.max_offset(TIMER_TOPIC, 0)
        self.pop = PopState(
            self.store,
            self.ledger,
            timer_directory.found,
            log=self.log,
            revive_topic=REVIVE_TOPIC_PREFIX + self._config.cluster_name,
            clock=self._clock,
            is_group=self.tables.groups.__contains__,
            # Its account as a slave, if it no longer is one.
            passed_on=None if self._config.is_slave else self.passed_on.become_master(journal_end),
        )
        copies = DeliveredCopies(self.store, self.destinations)
        if not self._config.is_slave:  # Its master delivers the copies.
            copies.begin()
        self.timers = TimerFiles(
            timer_directory,
            self.store,
            timer_options(self._config),
            pop=self.pop,
            destinations=self.destinations,
            wall_ms=self._clock.wall_ms,
            copies=copies,
        )
        self.progress = self._progress_files()

    def _progress_files(self) -> tuple[ProgressFile, ...]:
        offsets_ms = self._config.flush_consumer_offset_interval_ms
        filters = DocumentSource(
            self.tables.filters_file,
            lambda: self.tables.filters.version,
            self.tables.filters.file,
            self.tables.filters.clean,
        )
        sources: tuple[tuple[str, int, Source], ...] = (
            ("delayOffset.json", SCHEDULE_SAVE_MS, self._schedule_source),
            ("timercheck", TIMERS_SAVE_MS, self.timers),
            ("popPassedOn.json", PASSED_ON_SAVE_MS, self.passed_on),
            (SLAVE_COMMITS, PASSED_ON_SAVE_MS, self.at_slave.source),
            (BEGINNINGS, BEGINNINGS_SAVE_MS, self.beginnings.source),
            ("consumerOffset.json", offsets_ms, self.ledger),
            ("consumerFilter.json", FILTERS_SAVE_MS, filters),
        )
        return tuple(ProgressFile(*each, self.store, self._clock) for each in sources)

    def _forget_lost_pops(self) -> None:
        """Forget ordered pops of messages that the store lost: new messages will get their offsets."""
        orders = self.tables.ordered
        for queue, pop in list(orders.pops.items()):
            group, topic, queue_id = queue
            if pop.offsets[-1] < self.store.max_offset(topic, queue_id):
                continue
            of = f"{topic}@{group}"
            log.warning("a pop in order is forgotten: its messages are lost", of=of, queue_id=queue_id)
            try:
                orders.remove(queue)
            except BrokerError:  # A full disk can still be read; the next fold makes up for it.
                del orders.pops[queue]

    def _topic_changed(self, name: str) -> None:
        topic = self.tables.topics.get(name)
        if topic is not None and is_of_batches(topic):
            self.store.keep_in_batches(name)

    @property
    def has_progress(self) -> bool:
        """Return whether a progress file is out of date."""
        for file in self.progress:  # noqa: SIM110 - evaluated after most events, so without a generator.
            if file.has_changes:
                return True
        return False

    def forget_progress(self) -> None:
        """Redeliver everything pending: a slave's log is about to be cut, and delivered copies with it.

        The master's progress is copied again soon. The files are written as soon as possible
        (`is_progress_saved`).
        """
        timers = self.timers.timers
        self.passed_on.journal_begins_at(-1)
        if self.schedule.offsets or timers.again != Again():
            self.schedule.copy_offsets({}, {})
            timers.copy(Again())
            self.save_progress_soon()

    def pop_passed_on(self) -> PassedOn:
        """Return POP's progress for other brokers: a master's journal position, or a slave's account."""
        return self.passed_on.account if self.store.config.is_copy else PassedOn(place=self.pop.place)

    def delay_answer(self) -> DelayAnswer:
        """Return the progress that slaves and masters exchange: deliveries here, and at a slave."""
        schedule = DelayAnswer(
            offset_table=dict(self.schedule.offsets),
            level_accounts=dict(self.schedule.accounts),
            passed_on=self.pop_passed_on(),
        )
        if not self.store.config.is_copy:
            return schedule
        committed: dict[str, dict[int, int]] = {}
        for key, queue_id, offset in self.at_slave.take_turns(COMMITS_ANSWERED_MAX):
            committed.setdefault(key, {})[queue_id] = offset
        queue = (names.TRANSACTION_GROUP, names.TRANS_HALF_TOPIC, names.TRANS_QUEUE_ID)
        return msgspec.structs.replace(
            schedule,
            half_offset=self.ledger.offsets.query(*queue) or 0,
            timers=tuple(self.timers.timers.again),
            committed=committed,
            last_record=self.store.copy.last_record(),
        )

    def save_progress_soon(self) -> None:
        """Write the progress files as soon as possible."""
        for file in self.progress:
            file.soon()

    @property
    def is_progress_saved(self) -> bool:
        """Return whether the files of delay levels and timers are up to date."""
        return not (self._schedule_source.has_changes or self.timers.has_changes)

    def key_index(self) -> KeyIndex:
        """Return the index of messages by key."""
        return KeyIndex(
            self.filesystem,
            self.store.config.root,
            slots=self._config.max_hash_slot_num,
            entries_max=self._config.max_index_num,
            commit_log=self.store.config.commit_log,
            is_trusted=self.store.recovery is not None and self.store.recovery.clean,
        )

    def close(self) -> None:
        """Leave all files in the state of a clean stop; a failure does not stop the rest."""
        self.store.look_for_directories()
        with ExitStack() as stack:
            stack.callback(self.store.close)
            stack.callback(self.timers.close)
            if self.store.lost is not None:  # Another store's files may have our files' names.
                stack.callback(self.tables.abandon)
                stack.callback(self.ledger.abandon, touches_files=False)
                return
            stack.callback(self.ledger.abandon)
            stack.callback(self._finish_progress)
            stack.callback(self.pop.close)
            stack.callback(self.tables.close)

    def _finish_progress(self) -> None:
        try:
            self.store.flush()  # Before the files that mark messages as done.
        except StoreError as error:
            log.error("progress positions not written; the journals are kept", reason=str(error))
            return
        for file in self.progress:
            file.finish()
