"""The table copies of a slave: topics, groups, and what its master has done.

    every 10 s: topics ─► groups ─► request modes      each: asked ─► decoded ─► applied
                deletions, consumer offsets ─► delay offsets ─► timer checkpoint ─► timer metrics
                                                       each: asked ─► decoded ─► kept (`CopiedProgress`)

A thread decodes each; differences are applied in steps. A table that cannot be copied stays as it is. So
do all while the log is not copied: a master that returned with an empty disk has lost its tables, too.
Upstream: broker/slave/SlaveSynchronize.java.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from libramq.broker.cluster.copied_progress import CopiedProgress
from libramq.broker.cluster.returned_commits import OffsetTables, ReturnedCommits
from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.schedule_file import DelayAnswer
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.catalog import GroupTable, TopicTable
from libramq.catalog.request_modes import RequestModesFile
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, RemoteProtocolError
from libramq.formats import fastjson
from libramq.formats.document import decode_body, from_value
from libramq.formats.tables import DataVersion, SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.work import InThread, Work
from libramq.logs import get_logger
from libramq.offsets.commits_ahead import COMMITS_AHEAD, CommitsAheadFile
from libramq.offsets.ledger import offset_table
from libramq.rpc import slave_calls
from libramq.rpc.call import Call
from libramq.rpc.question import Ask, Question, answer_to
from libramq.store.retention.deletions import COPIED_AS
from libramq.timers.metrics import TimerMetricsFile
from libramq.timers.timer_checkpoint import TimerCheckpoint, decode_timer_checkpoint
from libramq.timers.timers import Again

log = get_logger(__name__)

#: Ours; SlaveSynchronize's is 60 s, by which offsets at a slave are behind when its master is lost.
PERIOD_MS: Final = 10_000
#: Ours: how soon a round follows another one, if the log shows that the master has a new topic.
SOON_MS: Final = 500
#: Ours: a large table takes its master a second or two.
ANSWER_MS_MAX: Final = 10_000

_LOG_END: Final = "end of the log"

R = TypeVar("R")


class _Table(NamedTuple):
    """One table. apply: applies its decoded content, with a yield after each step.

    is_progress: it says what the master has done, and is applied once this slave has that (`CopiedProgress`).
    arrived: called with its content before that.
    """

    name: str
    call: Call[bytes]
    decode: Callable[[bytes], Any]
    apply: Callable[[Any], Iterator[None]]
    is_progress: bool = False
    arrived: Callable[[Any], None] | None = None


class CopyingSlave(Protocol):
    """The slave whose tables are copied."""

    @property
    def copying(self) -> int | None:
        """Return the number of the copying of the log that is under way; None: there is none."""
        ...

    @property
    def is_ahead_of_master(self) -> bool:
        """Return whether this slave has delivered what its master does not know of yet."""
        ...


class TableCopies:
    """Copies the master's tables, one after the other. with_timers: whether timer messages are served."""

    def __init__(
        self,
        *,
        files: BrokerFiles,
        offsets: OffsetCommits,
        kernel: Kernel,
        ask: Ask,
        slave: CopyingSlave,
        with_timers: bool,
    ) -> None:
        self._topics = files.tables.topics
        self._groups = files.tables.groups
        self._modes = files.tables.request_modes
        self._offsets = offsets
        self._schedule = files.schedule
        self._timers = files.timers.timers
        self._passed_on = files.passed_on
        self._store = files.store
        self._clock = kernel.clock
        self._work = kernel.work
        self._ask = ask
        self._slave = slave
        #: The copying for which tables are asked.
        self._copying: int | None = None
        self._master: str | None = None
        self._due = kernel.deadlines.new(self._begin)
        self._failed: set[str] = set()
        self._is_wanted = False
        self._tables = (*self._settings(), *self._progress(with_timers=with_timers))
        self.progress = CopiedProgress(files.store, kernel, self._note)
        #: The round under way; None between rounds.
        self._round: Work[None] | None = None

    def follow(self, master: str) -> None:
        """Copy from the master at this address, while its log is copied: at once and every PERIOD_MS."""
        self._master = master

    def soon(self) -> None:
        """Copy at once, or again after the round under way: the master has something new."""
        self._is_wanted = True
        if self._round is None and self._copying is not None:
            self._due.by(self._clock.monotonic_ms())

    def settle(self) -> None:
        """Begin with a new copying, whose master may be another one; apply what waited for the log."""
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
        """Ask for each table, and then for the end of the log that they speak of."""
        assert self._master is not None
        is_waiting = self.progress.is_waiting
        try:
            for table in [each for each in self._tables if not (each.is_progress and is_waiting)]:
                try:
                    data = yield answer_to(self._ask, self._master, table.call, ANSWER_MS_MAX)
                    if copying != self._slave.copying:  # It is of another master, perhaps.
                        return
                    content = yield InThread(Thread.COMPUTE, partial(table.decode, data))
                    if not table.is_progress:
                        yield from table.apply(content)
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
        """Take the end of the master's log. One that ends before what was copied of it is another log."""
        assert self._master is not None
        copied = self._store.copy.end
        try:
            end = yield answer_to(self._ask, self._master, slave_calls.log_end(), ANSWER_MS_MAX)
            if end < copied:
                raise RemoteProtocolError("it ends before its copy")
        except LibraError as error:
            self._note(_LOG_END, error)
            self.progress.drop()
        else:
            if copying == self._slave.copying:
                self._note(_LOG_END, None)
                self.progress.ends_at(end)

    def _question(self, call: Call[R], done: Callable[[R | LibraError], None]) -> None:
        """Ask the master; drop an answer that comes after the end of this copying."""
        copying = self._copying

        def answered(answer: R | LibraError) -> None:
            if copying is not None and copying == self._slave.copying == self._copying:
                done(answer)

        assert self._master is not None
        self._ask(Question(self._master, call, answered, ANSWER_MS_MAX))

    def _note(self, name: str, error: BaseException | None) -> None:
        """Log a failure, once until it is over."""
        if error is None:
            self._failed.discard(name)
        elif name not in self._failed:
            self._failed.add(name)
            log.warning(
                "a table of the master cannot be copied; retrying", table=name, master=self._master,
                reason=str(error),
            )  # fmt: skip

    def _settings(self) -> tuple[_Table, ...]:
        """Return the tables that are applied at once."""
        return (
            _Table(
                "topics",
                slave_calls.all_topics(),
                partial(decode_body, kind=TopicConfigSerializeWrapper),
                self._apply_topics,
            ),
            _Table(
                "groups",
                slave_calls.all_groups(),
                partial(decode_body, kind=SubscriptionGroupWrapper),
                self._apply_groups,
            ),
            _Table(
                "request modes",
                slave_calls.all_request_modes(),
                partial(decode_body, kind=RequestModesFile),
                self._apply_modes,
            ),
        )

    def _progress(self, *, with_timers: bool) -> tuple[_Table, ...]:
        """Return the tables of what the master has done."""
        tables = (
            _Table(
                "consumer offsets",
                slave_calls.all_consumer_offsets(),
                _decode_offsets,
                self._apply_offsets,
                is_progress=True,
                arrived=ReturnedCommits(self._offsets.at_slave, self._question).send,
            ),
            _Table(
                "delay offsets",
                slave_calls.all_delay_offsets(),
                partial(decode_body, kind=DelayAnswer),
                self._apply_delays,
                is_progress=True,
            ),
        )
        timers = (
            _Table(
                "timer checkpoint",
                slave_calls.timer_checkpoint(),
                decode_timer_checkpoint,
                self._apply_timers,
                is_progress=True,
            ),
            _Table(
                "timer metrics",
                slave_calls.timer_metrics(),
                partial(decode_body, kind=TimerMetricsFile),
                self._apply_timer_metrics,
                is_progress=True,
            ),
        )
        return (*tables, *timers) if with_timers else tables

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

    def _apply_delays(self, content: DelayAnswer) -> Iterator[None]:
        if not self._slave.is_ahead_of_master:
            self._schedule.copy_offsets(content.offset_table, content.level_accounts)
            self._passed_on.journal_begins_at(content.passed_on.place if content.passed_on else -1)
            self._passed_on.leave_halves()
        yield

    def _apply_timers(self, content: TimerCheckpoint) -> Iterator[None]:
        if not self._slave.is_ahead_of_master:
            self._timers.copy(Again(content.master_queue_offset, content.read_ms))
        yield

    def _apply_timer_metrics(self, content: TimerMetricsFile) -> Iterator[None]:
        self._timers.copy_metrics(content)
        yield

    def _apply_modes(self, content: RequestModesFile) -> Iterator[None]:
        self._modes.copy(content)
        yield


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
    """Make a table's entries those of the master, and only then its version the master's."""
    if table.data_version == version:
        return
    gone = [name for name in table.names() if name not in entries]
    changed: list[tuple[str, Any]] = [(name, None) for name in gone]
    changed += [(name, entry) for name, entry in entries.items() if table.get(name) != entry]
    for name, entry in changed:
        table.copy(name, entry)
        yield
    table.data_version = version
