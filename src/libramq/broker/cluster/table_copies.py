"""The table copies of a slave: how often it copies its master's topics, groups, users and offsets, which of
them it holds back until its log has caught up, and which commits it returns to the master.

    every 10 s: topics ─► groups ─► request modes      each: asked ─► decoded ─► applied
                deletions, consumer offsets ─► delay offsets ─► timer checkpoint ─► timer metrics
                                                       each: asked ─► decoded ─► kept (`CopiedProgress`)

A thread decodes each table; differences are applied in steps. A table that cannot be copied stays as it is.
So do all tables while the log is not copied: a master that returned with an empty disk has lost its tables as
well.
Upstream: broker/slave/SlaveSynchronize.java.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from libramq.broker.config import BrokerConfig
from libramq.broker.files.delay_schedule import DelayAnswer
from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.slave_commits import CommitsAtSlave
from libramq.broker.files.tables import Tables
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.catalog.group_table import GroupTable
from libramq.catalog.request_modes import RequestModesFile
from libramq.catalog.topic_table import TopicTable
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError, RemoteProtocolError
from libramq.formats import fastjson
from libramq.formats.access import UsersFile
from libramq.formats.document import decode_body, from_value
from libramq.formats.tables import DataVersion, SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.work import InThread, Work
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.offsets.commits_ahead import COMMITS_AHEAD, CommitsAheadFile
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.offsets.ledger import offset_table
from libramq.rpc import peer_calls
from libramq.rpc.broker_calls import update_consumer_offset
from libramq.rpc.call import Call
from libramq.rpc.question import Ask, Question, answer_to
from libramq.store.deletions import COPIED_AS
from libramq.store.message_store import MessageStore
from libramq.timers.timer_checkpoint import TimerCheckpoint, decode_timer_checkpoint
from libramq.timers.timers import Again, TimerMetricsFile

log = get_logger(__name__)

#: Ours; SlaveSynchronize's is 60 s. Offsets at a slave are up to this old when its master is lost.
PERIOD_MS: Final = 10_000
#: Ours: the delay before the next round if the log shows that the master has a new topic.
SOON_MS: Final = 500
#: Ours: a large table takes its master a second or two.
ANSWER_MS_MAX: Final = 10_000
#: Ours: at most this many commits are returned to a master at once; others follow with the next table.
RETURNED_AT_ONCE: Final = 1_000
_LOG_END: Final = "end of the log"
R = TypeVar("R")
#: Applies a table, either at once or in steps with a yield after each.
Apply = Callable[[], Iterator[None] | None]
#: Asks the master, and passes its answer on unless the copying has changed meanwhile.
AskMaster = Callable[[Call[Any], Callable[[Any], None]], None]


class _Table(NamedTuple):
    """One table. apply: applies its decoded content, either at once or in steps with a yield after each.

    is_progress: the table records the master's progress, and is applied once this slave's log has caught up
    (`CopiedProgress`). arrived: called with the content before that.
    """

    name: str
    call: Call[bytes]
    decode: Callable[[bytes], Any]
    apply: Callable[[Any], Iterator[None] | None]
    is_progress: bool = False
    arrived: Callable[[Any], None] | None = None


class OffsetTables(NamedTuple):
    """Committed offsets and pending resets, by key and queue id; commits ahead; deletions in the store."""

    offsets: dict[str, dict[int, int]]
    resets: dict[str, dict[int, int]]
    ahead: CommitsAheadFile = CommitsAheadFile()
    deletions: Mapping[str, int] = MappingProxyType({})


class CopyingSlave(Protocol):
    """The slave whose tables are copied."""

    @property
    def copying(self) -> int | None:
        """Return the number of the current copying of the log, or None."""

    @property
    def is_ahead_of_master(self) -> bool:
        """Return whether this slave has made deliveries that its master does not know of yet."""


class TableCopies:
    """Copies the master's tables, one after the other."""

    def __init__(
        self,
        *,
        files: BrokerFiles,
        offsets: OffsetCommits,
        kernel: Kernel,
        ask: Ask,
        slave: CopyingSlave,
        config: BrokerConfig,
    ) -> None:
        self._topics = files.tables.topics
        self._groups = files.tables.groups
        self._offsets = offsets
        self._schedule = files.schedule
        self._timers = files.timers.timers
        self._passed_on = files.passed_on
        self._store = files.store
        self._clock = kernel.clock
        self._work = kernel.work
        self._ask = ask
        self._slave = slave
        #: The copying that tables are requested for.
        self._copying: int | None = None
        self._master: str | None = None
        self._due = kernel.deadlines.new(self._begin)
        self._failed: set[str] = set()
        self._is_wanted = False
        self._tables = tuple(self._all_tables(files.tables, config))
        self.progress = CopiedProgress(files.store, kernel, self._note)
        #: The current round; None between rounds.
        self._round: Work[None] | None = None

    def follow(self, master: str) -> None:
        """Copy from the master at this address while its log is copied: at once, then every PERIOD_MS."""
        self._master = master

    def soon(self) -> None:
        """Copy at once, or right after the current round: the master has something new."""
        self._is_wanted = True
        if self._round is None and self._copying is not None:
            self._due.by(self._clock.monotonic_ms())

    def settle(self) -> None:
        """Restart after a new copying, possibly from another master; apply tables that waited for the log."""
        copying = self._slave.copying
        if copying != self._copying:
            self._copying = copying
            self.progress.drop()
            if self._round is not None:
                self._round.close()
                self._round = None
            if copying is not None:
                self._due.at(self._clock.monotonic_ms())
        self.progress.settle()

    def _begin(self, _: MonotonicMs) -> None:
        if self._round is None and self._copying is not None:
            self._is_wanted = False
            self._round = self._copy(self._copying)
            self._work(self._round)

    def _copy(self, copying: int) -> Work[None]:
        """Fetch each table, and then the end of the log that the tables refer to."""
        assert self._master is not None
        is_waiting = self.progress.is_waiting
        try:
            for table in [each for each in self._tables if not (each.is_progress and is_waiting)]:
                try:
                    data = yield answer_to(self._ask, self._master, table.call, ANSWER_MS_MAX)
                    if copying != self._slave.copying:  # The answer may be another master's.
                        return
                    content = yield InThread(Thread.COMPUTE, partial(table.decode, data))
                    if not table.is_progress:
                        yield from table.apply(content) or (None,)
                    else:
                        if table.arrived is not None:
                            table.arrived(content)
                        self.progress.keep(table.name, partial(table.apply, content))
                except (LibraError, OSError) as error:
                    self._note(table.name, error)
                else:
                    if not table.is_progress:
                        self._note(table.name, None)
            if not (self.progress.is_empty or self.progress.is_waiting):
                yield from self._ask_end(copying)
        finally:
            self._round = None
            self._due.at(self._clock.monotonic_ms() + (SOON_MS if self._is_wanted else PERIOD_MS))

    def _ask_end(self, copying: int) -> Work[None]:
        """Fetch the end of the master's log; an end before the copied part means it is another log."""
        assert self._master is not None
        copied = self._store.copy.end
        try:
            end = yield answer_to(self._ask, self._master, peer_calls.LOG_END, ANSWER_MS_MAX)
            if end < copied:
                raise RemoteProtocolError("the master's log ends before its copy")
        except LibraError as error:
            self._note(_LOG_END, error)
            self.progress.drop()
        else:
            if copying == self._slave.copying:
                self._note(_LOG_END, None)
                self.progress.ends_at(end)

    def _question(self, call: Call[R], done: Callable[[R | LibraError], None]) -> None:
        """Ask the master; drop an answer that arrives after the end of this copying."""
        copying = self._copying

        def answered(answer: R | LibraError) -> None:
            if copying is not None and copying == self._slave.copying == self._copying:
                done(answer)

        assert self._master is not None
        self._ask(Question(self._master, call, answered, ANSWER_MS_MAX))

    def _note(self, name: str, error: BaseException | None) -> None:
        """Log a failure once, until the table can be copied again."""
        if error is None:
            self._failed.discard(name)
        elif name not in self._failed:
            self._failed.add(name)
            log.warning(
                "a table of the master cannot be copied; retrying", table=name, master=self._master,
                reason=str(error),
            )  # fmt: skip

    def _all_tables(self, tables: Tables, config: BrokerConfig) -> Iterator[_Table]:
        """Yield the tables: first those applied at once, then those with the master's progress."""
        yield _Table("topics", peer_calls.ALL_TOPICS, _of(TopicConfigSerializeWrapper), self._apply_topics)
        yield _Table("groups", peer_calls.ALL_GROUPS, _of(SubscriptionGroupWrapper), self._apply_groups)
        modes = tables.request_modes
        yield _Table("request modes", peer_calls.ALL_REQUEST_MODES, _of(RequestModesFile), modes.copy)
        if config.authentication_enabled:
            yield _Table("users", peer_calls.ALL_USERS, _of(UsersFile), tables.users.copy)
        progress = partial(_Table, is_progress=True)
        yield progress(
            "consumer offsets", peer_calls.ALL_CONSUMER_OFFSETS, _decode_offsets, self._apply_offsets,
            arrived=ReturnedCommits(self._offsets.at_slave, self._question).send,
        )  # fmt: skip
        yield progress("delay offsets", peer_calls.ALL_DELAY_OFFSETS, _of(DelayAnswer), self._apply_delays)
        if config.timer_wheel_enable:
            yield progress(
                "timer checkpoint", peer_calls.TIMER_CHECKPOINT, decode_timer_checkpoint, self._apply_timers
            )
            yield progress(
                "timer metrics", peer_calls.TIMER_METRICS, _of(TimerMetricsFile), self._timers.copy_metrics
            )

    def _apply_topics(self, content: TopicConfigSerializeWrapper) -> Iterator[None]:
        return _copy_entries(self._topics, content.topic_config_table, content.data_version)

    def _apply_groups(self, content: SubscriptionGroupWrapper) -> Iterator[None]:
        is_new = self._groups.data_version != content.data_version
        yield from _copy_entries(self._groups, content.subscription_group_table, content.data_version)
        if is_new:
            self._groups.copy_forbidden(content.forbidden_table)

    def _apply_offsets(self, content: OffsetTables) -> Iterator[None]:
        yield from self._store.copy_deletions(content.deletions)
        keys = content.offsets | content.resets
        self._offsets.remove_others(keys.keys())
        yield
        for key in keys:
            self._offsets.copy(key, content.offsets.get(key, {}), content.resets.get(key, {}))
            yield
        self._offsets.copy_ahead(content.ahead)

    def _apply_delays(self, content: DelayAnswer) -> None:
        if not self._slave.is_ahead_of_master:
            self._schedule.copy_offsets(content.offset_table, content.level_accounts)
            self._passed_on.journal_begins_at(content.passed_on.place if content.passed_on else -1)
            self._passed_on.leave_halves()

    def _apply_timers(self, content: TimerCheckpoint) -> None:
        if not self._slave.is_ahead_of_master:
            self._timers.copy(Again(content.master_queue_offset, content.read_ms))


class CopiedProgress:
    """Holds back the progress of a slave's master until this slave's log has caught up.

        tables kept ─► the end of the master's log ─► our log is flushed up to there ─► tables applied

    A delay level's offset refers to delivered copies in the log, and a committed offset of POP to check
    points there. Applied too early, such an offset would be durable before the records it refers to: after a
    promotion the slave would take messages for delivered that it lacks. This is the rule of
    `broker/files/progress.py`, across two brokers.

    Tables are valid for the copying in which they were requested. They are dropped when the logs are compared
    again: the master may have another log, in which their offsets mean something else.

    ended: called for each table with its name, and the error that stopped it.
    """

    def __init__(
        self, store: MessageStore, kernel: Kernel, ended: Callable[[str, BaseException | None], None]
    ) -> None:
        self._store = store
        self._ended = ended
        self._work = kernel.work
        self._applying = self._apply(())
        self._kept: list[tuple[str, Apply]] = []
        self._log_end: int | None = None
        #: The end of the master's log at the progress applied last; None while that is unknown.
        self.applied_end: int | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether tables wait for the log, or are being applied."""
        return self._log_end is not None

    @property
    def is_empty(self) -> bool:
        """Return whether no table is kept."""
        return not self._kept

    def keep(self, name: str, apply: Apply) -> None:
        """Keep a table; `ends_at` follows."""
        self._kept.append((name, apply))

    def ends_at(self, log_end: int) -> None:
        """Note where the master's log ended after the tables were requested."""
        self._log_end = log_end
        self.settle()

    def drop(self) -> None:
        """Forget the kept tables, and the rest of a table being applied."""
        self._kept.clear()
        self._log_end = None
        self._applying.close()

    def settle(self) -> None:
        """Apply the kept tables if the log is flushed far enough."""
        if self._log_end is None or not self._kept or self._log_end > self._store.flushed_offset:
            return
        # Even a part of the tables, applied from here on, refers to the log up to there.
        self.applied_end = max(self._log_end, self.applied_end or 0)
        tables, self._kept = self._kept, []
        self._applying = self._apply(tables)
        self._work(self._applying)

    def _apply(self, tables: Sequence[tuple[str, Apply]]) -> Work[None]:
        try:
            for name, apply in tables:
                error: Exception | None = None
                try:
                    yield from apply() or (None,)
                except (LibraError, OSError) as failed:
                    error = failed
                self._ended(name, error)
        finally:
            self._log_end = None


class ReturnedCommits:
    """Sends the master offsets that groups committed at this slave while the master was gone.

        the master's table arrives ─┬─ it has as much, or a reset waits ─► forgotten
                                    └─ it has less, or nothing          ─► committed at the master, forgotten

    Otherwise a group's first commits would be lost once the master is back, and the group would restart
    elsewhere, perhaps at the end of its queues, skipping unread messages. Members of coordinated groups
    commit at masters only. Commits to return are kept in a file (`CommitsAtSlave`), as the slave may restart
    before its master is back.

    The master's table is older than its answer, so the master compares again: a returned commit moves nothing
    back there, neither a committed offset nor a position of POP that is ahead of it. No such move can be
    intended, since a slave refuses resets. A commit behind an earlier one is valid at the slave until its
    master is back.

    Upstream: none; BrokerPreOnlineService.syncMetadataReverse copies the whole table of an acting master,
    unless its own version is higher, and so also moves offsets back. PopMessageProcessor.getPopOffset
    continues from the higher of the buffered and the committed offset as well.
    """

    def __init__(self, at_slave: CommitsAtSlave, ask_master: AskMaster) -> None:
        self._at_slave = at_slave
        self._ask_master = ask_master

    def send(self, master: OffsetTables) -> None:
        """Compare with a table that arrived from the master; returned commits are added to that table."""
        for key, queue_id, offset in self._at_slave.take_turns(RETURNED_AT_ONCE):
            is_known = master.offsets.get(key, {}).get(queue_id, -1) >= offset
            if is_known or queue_id in master.resets.get(key, {}):
                self._at_slave.forget(key, queue_id, offset)
                continue
            topic, _, group = key.partition(SEPARATOR)
            if group == half.TRANSACTION_GROUP:
                continue  # The master asks for it (`returning_master.py`), and refuses a commit of it.
            call = update_consumer_offset(group, MessageQueue(topic, "", queue_id), offset, is_returned=True)
            self._ask_master(call, partial(self._answered, master, key, queue_id, offset))

    def _answered(
        self, master: OffsetTables, key: str, queue_id: int, offset: int, failure: LibraError | None
    ) -> None:
        if failure is None:
            master.offsets.setdefault(key, {})[queue_id] = offset  # Applied later with the table.
        elif isinstance(failure, BrokerError) and failure.response_code != ResponseCode.SYSTEM_BUSY:
            log.warning("the master refuses an offset committed here", of=key, reason=str(failure))
        else:
            return  # Returned again after one of the next tables.
        self._at_slave.forget(key, queue_id, offset)


def _of(kind: type[R]) -> Callable[[bytes], R]:
    """Return a decoder of a table of this type."""
    return partial(decode_body, kind=kind)


def _decode_offsets(body: bytes) -> OffsetTables:
    document = fastjson.loads(body)
    if not isinstance(document, dict) or "offsetTable" not in document:
        raise RemoteProtocolError("the answer has no offsetTable")
    return OffsetTables(
        offset_table(document["offsetTable"]),
        offset_table(document.get("resetOffsetTable")),
        from_value({"commits": document.get(COMMITS_AHEAD) or {}}, CommitsAheadFile),
        from_value(document.get(COPIED_AS) or {}, dict[str, int]),
    )


def _copy_entries(
    table: TopicTable | GroupTable, entries: Mapping[str, Any], version: DataVersion
) -> Iterator[None]:
    """Replace a table's entries by the master's, and only then its version."""
    if table.data_version == version:
        return
    gone = [name for name in table.names() if name not in entries]
    changed: list[tuple[str, Any]] = [(name, None) for name in gone]
    changed += [(name, entry) for name, entry in entries.items() if table.get(name) != entry]
    for name, entry in changed:
        table.copy(name, entry)
        yield
    table.data_version = version
