"""The returning master: before it delivers, after a start or a stall, it asks its slaves what they delivered
for it, compares their logs, waits up to 30 s, and continues from their progress.

    a master: start, a stall, a lost registration
          ─► a name server: our slaves ─► each: offsets of delay levels and half messages, and its timers
          ─► is the message before such an offset the same as ours? ─► we continue there

If a slave's log has diverged, its levels are numbered differently, and its offsets would make the master skip
undelivered messages. So the record before an offset is compared: logs are equal up to an equal record. While
it waits for a slave, the master delivers nothing; after 30 s it does, and messages the slave has sent may
come twice. How the slaves decide which of them acts is in `acting_slave/takeover.py`.

Upstream: BrokerPreOnlineService.syncMetadataReverse, which compares version numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from libramq.broker.cluster.registration import Registration
from libramq.broker.config import BrokerConfig
from libramq.broker.files.delay_schedule import DelayAnswer, LevelAccount
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.broker.transactions.checking import Checking
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode
from libramq.errors import BrokerError, LibraError
from libramq.formats.document import decode_body
from libramq.formats.route import MASTER_ID
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Callback, Work
from libramq.logs import get_logger
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.pop.passed_on import PassedOn
from libramq.remoting.body.cluster import ClusterInfo
from libramq.remoting.command import Command
from libramq.remoting.headers import SlaveProgressHeader
from libramq.rpc.broker_calls import query_consumer_offset
from libramq.rpc.call import Call, header_call
from libramq.rpc.name_server_calls import cluster_info
from libramq.rpc.peer_calls import TIMER_CHECKPOINT, record_at
from libramq.rpc.question import answer_to, signing
from libramq.store.rounds import Rounds
from libramq.timers.timer_checkpoint import decode_timer_checkpoint
from libramq.timers.timers import Again

log = get_logger(__name__)

#: Ours: the field in which a slave says that answers to messages it has sent are pending.
ESCAPING_FIELD: Final = "lbEscaping"
#: Ours: how long a master waits for its slaves; Apache's waits until they have answered.
WAIT_MS_MAX: Final = 30_000
ANSWER_MS_MAX: Final = 3_000
AGAIN_MS: Final = 500
#: Ours: a master silent for less keeps its registration at name servers, which lasts 10 s
#: (registration.HEARTBEAT_TIMEOUT_MS), and its connection to its slave.
STALL_MS_MIN: Final = 5_000


class Delivered(NamedTuple):
    """A slave's answer. accounts: its deliveries, by level. is_moving: they may still grow."""

    accounts: dict[int, LevelAccount]
    is_moving: bool
    others: DelayAnswer

    @property
    def timers(self) -> Again | None:
        """Return which timer messages the slave has sent; None for an older slave or Apache's."""
        timers = self.others.timers
        return Again(*timers) if timers is not None and len(timers) == len(Again._fields) else None


def delivered() -> Call[Delivered]:
    """Return a query of a slave's delay levels; it also stops the slave from sending."""
    return header_call(RequestCode.GET_ALL_DELAY_OFFSET, None, _delivered)


def peer_progress(broker_id: int) -> Call[Delivered]:
    """Return a query of another slave's progress. broker_id: ours; slaves with a higher id stop acting."""
    return header_call(RequestCode.SLAVE_PROGRESS, SlaveProgressHeader(broker_id=broker_id), _delivered)


def _delivered(reply: Command) -> Delivered:
    answer = decode_body(reply.body, DelayAnswer)
    accounts = {level: LevelAccount(until=offset) for level, offset in answer.offset_table.items()}
    accounts |= answer.level_accounts
    return Delivered(accounts, reply.ext.get(ESCAPING_FIELD) == "1", answer)


class ReturningMaster:
    """Queries the slaves before a master delivers: at its start, and whenever they may have acted for it."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        kernel: Kernel,
        registration: Registration,
        checking: Checking,
        offsets: OffsetCommits,
    ) -> None:
        self._schedule, self._store = files.schedule, files.store
        self._tables, self._offsets = files.tables, offsets
        self._clock, self._deadlines, self._work = kernel.clock, kernel.deadlines, kernel.work
        self._name = config.broker_name
        self._name_servers = registration.name_servers
        self._ask_signed = signing(kernel.effects.ask, config.credentials)
        self._timers, self._pop = files.timers.timers, files.pop
        self._checking = checking
        self._held: Sequence[Rounds] = ()
        self._is_asking = False
        self._asking = self._ask_all()
        self._turn = 0
        #: Slaves that have not answered yet.
        self._slaves: list[str] = []
        self._give_up = kernel.deadlines.new(self._wait_no_longer)
        registration.observe_return(self._registered_again)

    def start(self, held: Sequence[Rounds]) -> None:
        """Ask for the first time. held: the delivering services, which are still on hold."""
        self._held = held
        self._begin()

    def stalled(self, stall_ms: int, _: MonotonicMs) -> None:
        """Ask again after a stall: slaves may have acted meanwhile. Called before due work."""
        if stall_ms >= STALL_MS_MIN:
            self._ask_again("this process was stalled")

    def look_for_stall(self, now_ms: MonotonicMs) -> None:
        """Ask again if this process was stalled and `stalled` has not been called yet."""
        due_ms = self._deadlines.next_due_ms
        if due_ms is not None and now_ms - due_ms >= STALL_MS_MIN:
            self._ask_again("this process was stalled")

    def _registered_again(self) -> None:
        if not self._is_asking:
            self._ask_again("name servers had lost this master")

    def _ask_again(self, reason: str) -> None:
        log.info("asking the slaves what they have delivered", reason=reason)
        for each in self._held:
            each.hold()
        self._begin()

    def _begin(self) -> None:
        schedule, store = self._schedule, self._store
        # Slaves lack messages stored from now on; there, an offset beyond these ends means another.
        self._ends = {level: store.next_offset(names.SCHEDULE_TOPIC, level - 1) for level in schedule.levels}
        self._half_end = store.next_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID)
        self._timer_end = store.next_offset(names.TIMER_TOPIC, 0)
        self._checking.open.held_before = self._half_end
        self._is_asking = True
        self._asking.close()
        self._asking = self._ask_all()
        self._work(self._asking)
        self._give_up.at(self._clock.monotonic_ms() + WAIT_MS_MAX)

    def _answer(self, address: str, call: Call[Any]) -> Callback:
        return answer_to(self._ask_signed, address, call, ANSWER_MS_MAX)

    def _pause(self) -> Callback:
        return Callback(partial(self._deadlines.set, self._clock.monotonic_ms() + AGAIN_MS))

    def _ask_all(self) -> Work[None]:
        """Adopt the progress of each slave, then deliver."""
        self._slaves = yield from self._find()
        while self._slaves:
            slave = self._slaves[0]
            try:
                answer: Delivered = yield self._answer(slave, delivered())
            except LibraError:  # The slave may be gone by now.
                yield self._pause()
                self._slaves = yield from self._find()
                continue
            if answer.is_moving:
                yield self._pause()
                continue
            self._slaves.remove(slave)
            levels = self._ahead(answer.accounts)
            yield from self._take_commits_over(slave, answer.others)
            yield from self._take_levels_over(slave, levels)
            yield from self._take_half_messages_over(slave, answer.others)
            yield from self._take_timers_over(slave, answer.timers)
            yield from self._acknowledge(slave, answer.others.passed_on)
        self._end()

    def _find(self) -> Work[list[str]]:
        """Query one name server after the other for our slaves."""
        while True:
            if self._name_servers:  # Else the list has not been fetched yet.
                self._turn += 1
                name_server = self._name_servers[self._turn % len(self._name_servers)]
                with suppress(LibraError):
                    info: ClusterInfo = yield self._answer(name_server, cluster_info())
                    addresses = sorted(info.addresses_of(self._name).items())
                    return [address for id_, address in addresses if id_ != MASTER_ID]
            yield self._pause()

    def _take_commits_over(self, slave: str, answer: DelayAnswer) -> Work[None]:
        """Adopt the commits of groups at a slave, if all of its log is in ours.

        Otherwise the slave returns them once it has our log (`table_copies.py`).
        """
        place = answer.last_record
        record = self._store.copy.record(*place) if place is not None and answer.committed else None
        if place is not None and record is not None:
            with suppress(LibraError):
                if record == (yield self._answer(slave, record_at(place[0], record))):
                    self._take_commits(answer.committed)

    def _take_commits(self, committed: Mapping[str, Mapping[int, int]]) -> None:
        for key, queues in committed.items():
            topic, _, group = key.partition(SEPARATOR)
            if group == half.TRANSACTION_GROUP or group not in self._tables.groups:
                continue
            if topic not in self._tables.topics:
                continue
            for queue_id, offset in queues.items():
                if self._offsets.pending_reset(group, topic, queue_id) is not None:
                    continue
                try:
                    self._tables.fences.check(group, topic, queue_id, None, None)
                except BrokerError:
                    continue
                self._offsets.commit_forwards(group, topic, queue_id, offset)

    def _take_levels_over(self, slave: str, levels: Sequence[tuple[int, LevelAccount]]) -> Work[None]:
        for level, account in reversed(levels):
            if (yield from self._has_same(slave, names.SCHEDULE_TOPIC, level - 1, account.until - 1)):
                self._schedule.passed_on(level, account)
                log.info(
                    "a slave has delivered messages meanwhile",
                    slave=slave, level=level, up_to=account.until, waiting=len(account.waiting),
                )  # fmt: skip

    def _take_half_messages_over(self, slave: str, answer: DelayAnswer) -> Work[None]:
        """Continue after the half messages that a slave has passed on; query a slave of an older version.

        The answer must be used now: once the slave copies our log again, it has our older offset.
        """
        offset = answer.half_offset
        if offset is None:
            queue = MessageQueue(names.TRANS_HALF_TOPIC, self._name, half.QUEUE_ID)
            try:
                offset = yield self._answer(slave, query_consumer_offset(half.TRANSACTION_GROUP, queue))
            except LibraError as error:
                log.warning(
                    "a slave does not say which transactions it has passed on", slave=slave, reason=str(error)
                )
        offset = min(offset, self._half_end) if isinstance(offset, int) else 0
        begin, end = (answer.passed_on.halves if answer.passed_on is not None else None) or (0, -1)
        lacks_some = begin < offset <= end < self._half_end
        if offset <= self._checking.open.half_offset and not lacks_some:
            return
        last = (end if lacks_some else offset) - 1
        if not (yield from self._has_same(slave, names.TRANS_HALF_TOPIC, half.QUEUE_ID, last)):
            return
        read = range(begin, end if lacks_some else begin)
        try:
            yield from self._until_accepted(partial(self._checking.passed_on, offset, read))
        except (LibraError, OSError) as error:
            log.warning("open transactions may end twice", slave=slave, reason=str(error))
        else:
            log.info("a slave has passed on open transactions meanwhile", slave=slave, up_to=offset)

    def _take_timers_over(self, slave: str, sent: Again | None) -> Work[None]:
        """Continue after the timer messages that a slave has sent; query a slave of an older version."""
        if sent is None:
            try:
                found = decode_timer_checkpoint((yield self._answer(slave, TIMER_CHECKPOINT)))
            except LibraError as error:
                log.warning(
                    "a slave does not say which timer messages it has sent", slave=slave, reason=str(error)
                )
                return
            sent = Again(found.master_queue_offset, found.read_ms)
        again = Again(min(sent.until, self._timer_end), sent.from_ms)
        delivered_ms = self._timers.read_ms(self._clock.wall_ms())
        is_ours = again.until <= self._timers.queue_offset and again.from_ms <= delivered_ms
        if is_ours or again.until <= 0:
            return
        if (yield from self._has_same(slave, names.TIMER_TOPIC, 0, again.until - 1)):
            self._timers.take_over(again)
            log.info("a slave has sent timer messages meanwhile", slave=slave, up_to_ms=again.from_ms)

    def _acknowledge(self, slave: str, popped: PassedOn | None) -> Work[None]:
        """Acknowledge messages popped here that a slave has passed on."""
        until = min(popped.until, self._timer_end) if popped is not None else 0
        if popped is None or until <= 0:
            return
        if not (yield from self._has_same(slave, names.TIMER_TOPIC, 0, until - 1)):
            return
        passed_on = msgspec.structs.replace(popped, until=until)
        try:
            yield from self._until_accepted(partial(self._pop.passed_on, passed_on))
        except (LibraError, OSError) as error:
            log.warning(
                "messages passed on by a slave will be delivered again", slave=slave, reason=str(error)
            )

    def _has_same(self, slave: str, topic: str, queue_id: int, offset: int) -> Work[bool]:
        """Return whether a slave has the same message at an offset."""
        units = self._store.queue_units(topic, queue_id, offset, 1)
        record = self._store.copy.record(units[0][0], units[0][1]) if units else None
        if record is None:
            return False
        theirs: bytes | None = None
        with suppress(LibraError):
            theirs = yield self._answer(slave, record_at(units[0][0], record))
        if theirs != record:
            log.warning(
                "a slave's log has diverged: messages it has delivered may be delivered again",
                slave=slave, topic=topic,
            )  # fmt: skip
        return theirs == record

    def _until_accepted(self, steps: Callable[[], Iterator[None]]) -> Work[None]:
        """Take some steps; repeat them after a refusal, as slaves may not be in sync yet."""
        while True:
            try:
                yield from steps()
                return
            except BrokerError:
                yield self._pause()

    def _ahead(self, accounts: dict[int, LevelAccount]) -> list[tuple[int, LevelAccount]]:
        """Return the levels in which a slave has delivered more."""
        bounded = [(level, each.bounded(self._ends.get(level, 0))) for level, each in accounts.items()]
        return [each for each in bounded if each[1].is_ahead_of(self._schedule.account_of(each[0]))]

    def _wait_no_longer(self, _: MonotonicMs) -> None:
        if self._is_asking:
            log.warning(
                "slaves have not reported deliveries; messages may be delivered again", slaves=self._slaves
            )
            self._asking.close()
            self._end()

    def _end(self) -> None:
        self._is_asking = False
        self._give_up.cancel()
        self._checking.open.held_before = 0
        for each in self._held:
            each.begin()
