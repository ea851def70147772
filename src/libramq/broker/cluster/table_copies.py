"""The table copies of a slave: topics, groups, committed offsets and delay levels, as its master has them.

    every 10 s: topics ─► groups ─► consumer offsets ─► delay offsets ─► request modes
                each: asked ─► decoded ─► applied

A thread decodes each; differences are applied in steps. A table that cannot be copied stays as it is.
Upstream: broker/slave/SlaveSynchronize.java.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from libramq.broker.files.schedule_file import ScheduleFile
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.schedule import DelaySchedule
from libramq.catalog import GroupTable, TopicTable
from libramq.catalog.request_modes import RequestModes, RequestModesFile
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.tables import DataVersion, SubscriptionGroupWrapper, TopicConfigSerializeWrapper
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.offsets.ledger import offset_table
from libramq.rpc import slave_calls
from libramq.rpc.call import Call
from libramq.rpc.question import Ask, Question

log = get_logger(__name__)

#: Ours; SlaveSynchronize's is 60 s, by which offsets at a slave are behind when its master is lost.
PERIOD_MS: Final = 10_000
#: Ours: how soon a round follows another one, if the log shows that the master has a new topic.
SOON_MS: Final = 500
#: Ours: a large table takes its master a second or two.
ANSWER_MS_MAX: Final = 10_000
#: Ours: how many entries one step applies, each with a line in a journal; some milliseconds.
STEP_ENTRIES: Final = 100


class _Table(NamedTuple):
    """One table. apply: applies its decoded content, with a yield after each step."""

    name: str
    call: Call[bytes]
    decode: Callable[[bytes], Any]
    apply: Callable[[Any], Iterator[None]]


class TableCopies:
    """Copies the master's tables, one after the other."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        modes: RequestModes,
        offsets: OffsetCommits,
        schedule: DelaySchedule,
        kernel: Kernel,
        ask: Ask,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._modes = modes
        self._offsets = offsets
        self._schedule = schedule
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._ask = ask
        self._master: str | None = None
        self._due = kernel.deadlines.new(self._begin)
        self._steps: Iterator[None] = iter(())
        self._step_due = kernel.deadlines.new(self._step)
        self._failed: set[str] = set()
        self._is_wanted = False
        self._tables = (
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
                "consumer offsets", slave_calls.all_consumer_offsets(), fastjson.loads, self._apply_offsets
            ),
            _Table(
                "delay offsets",
                slave_calls.all_delay_offsets(),
                partial(decode_body, kind=ScheduleFile),
                self._apply_delays,
            ),
            _Table(
                "request modes",
                slave_calls.all_request_modes(),
                partial(decode_body, kind=RequestModesFile),
                self._apply_modes,
            ),
        )
        #: The table under way; none between two rounds.
        self._position: int | None = None

    def follow(self, master: str) -> None:
        """Copy from the master at this address, at once and every PERIOD_MS."""
        if master != self._master:
            self._master = master
            if self._position is None:
                self._due.at(self._clock.monotonic_ms())

    def soon(self) -> None:
        """Copy at once, or again after the round under way: the master has something new."""
        self._is_wanted = True
        if self._position is None and self._master is not None:
            self._due.by(self._clock.monotonic_ms())

    def _begin(self, _: MonotonicMs) -> None:
        if self._position is None:
            self._is_wanted = False
            self._copy(0)

    def _copy(self, position: int) -> None:
        """Copy one table, and then the next."""
        if position == len(self._tables) or self._master is None:
            self._position = None
            self._due.at(self._clock.monotonic_ms() + (SOON_MS if self._is_wanted else PERIOD_MS))
            return
        self._position = position
        call = self._tables[position].call
        self._ask(Question(self._master, call, self._answered, ANSWER_MS_MAX))

    def _answered(self, answer: bytes | LibraError) -> None:
        if isinstance(answer, bytes):
            self._effects.run(Thread.COMPUTE, partial(self._table.decode, answer), self._decoded)
        else:
            self._end(answer)

    def _decoded(self, content: object) -> None:
        if isinstance(content, BaseException):
            self._end(content)
            return
        self._steps = self._table.apply(content)
        self._step_due.at(self._clock.monotonic_ms())

    def _step(self, now_ms: MonotonicMs) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._end(None)
        except (LibraError, OSError) as error:
            self._end(error)
        except BaseException as error:
            self._end(error)
            raise
        else:
            self._step_due.at(now_ms)

    def _end(self, error: BaseException | None) -> None:
        """Note how the copy of a table ended, and continue with the next."""
        name = self._table.name
        if error is None:
            self._failed.discard(name)
        elif name not in self._failed:
            self._failed.add(name)
            log.warning(
                "a table of the master cannot be copied; retrying", table=name, master=self._master,
                reason=str(error),
            )  # fmt: skip
        assert self._position is not None
        self._copy(self._position + 1)

    @property
    def _table(self) -> _Table:
        assert self._position is not None
        return self._tables[self._position]

    def _apply_topics(self, content: TopicConfigSerializeWrapper) -> Iterator[None]:
        return _copy_entries(self._topics, content.topic_config_table, content.data_version)

    def _apply_groups(self, content: SubscriptionGroupWrapper) -> Iterator[None]:
        return _copy_entries(self._groups, content.subscription_group_table, content.data_version)

    def _apply_offsets(self, content: object) -> Iterator[None]:
        table = offset_table(content.get("offsetTable") if isinstance(content, dict) else None)
        for count, (key, offsets) in enumerate(table.items(), 1):
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in offsets.items():
                self._offsets.commit(group, topic, queue_id, offset)
            if count % STEP_ENTRIES == 0:
                yield

    def _apply_delays(self, content: ScheduleFile) -> Iterator[None]:
        self._schedule.copy_offsets(content.offset_table)
        yield

    def _apply_modes(self, content: RequestModesFile) -> Iterator[None]:
        self._modes.copy(content)
        yield


def _copy_entries(
    table: TopicTable | GroupTable, entries: Mapping[str, Any], version: DataVersion
) -> Iterator[None]:
    """Make a table's entries those of the master, and only then its version the master's."""
    if table.data_version == version:
        return
    gone = [name for name in table.names() if name not in entries]
    changed: list[tuple[str, Any]] = [(name, None) for name in gone]
    changed += [(name, entry) for name, entry in entries.items() if table.get(name) != entry]
    for count, (name, entry) in enumerate(changed, 1):
        table.copy(name, entry)
        if count % STEP_ENTRIES == 0:
            yield
    table.data_version = version
