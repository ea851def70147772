"""The slaves' progress: what slaves have delivered while this master was gone, asked for before it delivers.

    start ─► a name server: our slaves ─► each: offsets of delay levels and half messages, and its timers
          ─► is the message before such an offset the one that we have? ─► we continue there

A slave whose log took another way counts its levels otherwise: its offsets would have messages skipped here
that nobody has delivered. So the record before an offset is compared: up to an equal record logs are equal.
While a slave is awaited nothing is delivered; after 30 s it is, and what the slave has sent may come twice.

Upstream: BrokerPreOnlineService.syncMetadataReverse, which compares version numbers.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from libramq.broker.cluster.steps import Steps
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.schedule_file import DelayAnswer
from libramq.broker.messages.level_account import LevelAccount
from libramq.broker.transaction_parts import TransactionParts
from libramq.broker.transactions import half
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode
from libramq.errors import LibraError
from libramq.formats.document import decode_body
from libramq.formats.route import MASTER_ID
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.pop.passed_on import PassedOn
from libramq.remoting.body.route import ClusterInfo
from libramq.remoting.command import Command
from libramq.rpc.broker_calls import query_consumer_offset
from libramq.rpc.call import Call, header_call
from libramq.rpc.name_server_calls import cluster_info
from libramq.rpc.question import Question, signing
from libramq.rpc.slave_calls import record_at, timer_checkpoint
from libramq.timers.timer_checkpoint import decode_timer_checkpoint
from libramq.timers.timers import Again

log = get_logger(__name__)

#: Ours: the field by which a slave says that it awaits answers about messages that it has sent.
ESCAPING_FIELD: Final = "lbEscaping"
#: Ours: how long a master waits for its slaves; Apache's waits until they have answered.
WAIT_MS_MAX: Final = 30_000
ANSWER_MS_MAX: Final = 3_000
AGAIN_MS: Final = 500


class Delivered(NamedTuple):
    """A slave's answer: what it has delivered, by level; is_moving: it may be more in a moment.

    popped: what it has passed on of POP; None of Apache's slave.
    """

    accounts: dict[int, LevelAccount]
    is_moving: bool
    popped: PassedOn | None


def delivered() -> Call[Delivered]:
    """Return how far a slave's delay levels are; it sends nothing more from now on."""
    return header_call(RequestCode.GET_ALL_DELAY_OFFSET, None, _delivered)


def _delivered(reply: Command) -> Delivered:
    answer = decode_body(reply.body, DelayAnswer)
    accounts = {level: LevelAccount(until=offset) for level, offset in answer.offset_table.items()}
    accounts |= answer.level_accounts
    return Delivered(accounts, reply.ext.get(ESCAPING_FIELD) == "1", answer.passed_on)


class SlavesProgress:
    """Asks once, at the start. done: called when this master may deliver."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        kernel: Kernel,
        name_servers: Sequence[str],
        transactions: TransactionParts,
        done: Callable[[], None],
    ) -> None:
        schedule, store = self._schedule, self._store = files.schedule, files.store
        self._clock = kernel.clock
        self._name = config.broker_name
        self._name_servers = name_servers
        self._ask = signing(kernel.effects.ask, config.credentials)
        self._done: Callable[[], None] | None = done
        # What is stored from now on, slaves do not have: a number beyond belongs to another message there.
        self._ends = {level: store.next_offset(names.SCHEDULE_TOPIC, level - 1) for level in schedule.levels}
        self._half_end = store.next_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID)
        self._timers, self._timer_start = files.timers.timers, files.timers.checkpoint
        self._timer_end = store.next_offset(names.TIMER_TOPIC, 0)
        self._pop, self._steps = files.pop, Steps(kernel)
        self._transactions = transactions
        transactions.open.held_before = self._half_end
        self._turn = 0
        self._slaves: list[str] = []
        self._again = kernel.deadlines.new(lambda _: self._next())
        self._give_up = kernel.deadlines.new(self._wait_no_longer)
        now_ms = self._clock.monotonic_ms()
        self._step: Callable[[], None] = self._find
        self._again.at(now_ms)
        self._give_up.at(now_ms + WAIT_MS_MAX)

    def _next(self) -> None:
        if self._done is not None:
            self._step()

    def _retry(self) -> None:
        self._again.at(self._clock.monotonic_ms() + AGAIN_MS)

    def _find(self) -> None:
        """Ask the next name server for our slaves."""
        if not self._name_servers:  # Their list has not been read yet.
            self._retry()
            return
        self._turn += 1
        name_server = self._name_servers[self._turn % len(self._name_servers)]
        self._ask(Question(name_server, cluster_info(), self._found, ANSWER_MS_MAX))

    def _found(self, info: ClusterInfo | LibraError) -> None:
        if isinstance(info, LibraError):
            self._retry()
            return
        broker = info.broker_addr_table.get(self._name)
        addresses = broker.broker_addrs if broker is not None else {}
        self._slaves = [address for id_, address in sorted(addresses.items()) if id_ != MASTER_ID]
        self._step = self._ask_slave
        self._next()

    def _ask_slave(self) -> None:
        if not self._slaves:
            self._end()
            return
        self._ask(Question(self._slaves[0], delivered(), self._answered, ANSWER_MS_MAX))

    def _answered(self, answer: Delivered | LibraError) -> None:
        if isinstance(answer, LibraError):
            self._step = self._find  # It may be gone by now.
            self._retry()
        elif answer.is_moving:
            self._retry()
        else:
            slave, levels = self._slaves.pop(0), self._ahead(answer.accounts)
            self._compare_journals(slave, answer.popped, lambda: self._compare(slave, levels))

    def _ask_half_messages(self, slave: str) -> None:
        """Ask up to where a slave has passed on half messages, then ask the next slave."""
        queue = MessageQueue(names.TRANS_HALF_TOPIC, self._name, half.QUEUE_ID)
        call = query_consumer_offset(half.TRANSACTION_GROUP, queue)
        self._ask(Question(slave, call, partial(self._passed_on, slave), ANSWER_MS_MAX))

    def _passed_on(self, slave: str, answer: int | LibraError | None) -> None:
        if isinstance(answer, LibraError):
            log.warning(
                "a slave does not say which transactions it has passed on", slave=slave, reason=str(answer)
            )
        offset = min(answer, self._half_end) if isinstance(answer, int) else 0
        if offset <= self._transactions.open.half_offset:
            self._ask_timers(slave)
            return

        def compared(is_equal: bool) -> None:
            if is_equal:
                self._transactions.passed_on(offset)
                log.info("a slave has passed on open transactions meanwhile", slave=slave, up_to=offset)
            self._ask_timers(slave)

        self._compare_record(slave, names.TRANS_HALF_TOPIC, half.QUEUE_ID, offset - 1, compared)

    def _ask_timers(self, slave: str) -> None:
        """Ask up to which time a slave has sent timer messages, then ask the next slave."""
        call = timer_checkpoint()
        self._ask(Question(slave, call, partial(self._timers_answered, slave), ANSWER_MS_MAX))

    def _timers_answered(self, slave: str, answer: bytes | LibraError) -> None:
        try:
            if isinstance(answer, LibraError):
                raise answer
            found = decode_timer_checkpoint(answer)
        except LibraError as error:
            log.warning(
                "a slave does not say which timer messages it has sent", slave=slave, reason=str(error)
            )
            self._next()
            return
        again = Again(min(found.master_queue_offset, self._timer_end), found.read_ms)
        ours = self._timer_start
        is_ours = again.until <= ours.master_queue_offset and again.from_ms <= ours.read_ms
        if is_ours or again.until <= 0:
            self._next()
            return

        def compared(is_equal: bool) -> None:
            if is_equal:
                self._timers.take_over(again)
                log.info("a slave has sent timer messages meanwhile", slave=slave, up_to_ms=again.from_ms)
            self._next()

        self._compare_record(slave, names.TIMER_TOPIC, 0, again.until - 1, compared)

    def _compare_record(
        self, slave: str, topic: str, queue_id: int, offset: int, compared: Callable[[bool], None]
    ) -> None:
        """Find out whether a slave has the same message at an offset."""
        units = self._store.queue_units(topic, queue_id, offset, 1)
        record = self._store.copy.record(units[0][0], units[0][1]) if units else None

        def answered(answer: bytes | LibraError) -> None:
            if self._done is None:
                return
            if answer != record:
                log.warning(
                    "a slave's log is another one: what it has delivered may be delivered again",
                    slave=slave, topic=topic,
                )  # fmt: skip
            compared(answer == record)

        if record is None:
            compared(False)
        else:
            self._ask(Question(slave, record_at(units[0][0], record), answered, ANSWER_MS_MAX))

    def _compare_journals(self, slave: str, popped: PassedOn | None, done: Callable[[], None]) -> None:
        """Acknowledge what a slave has passed on of what was popped here."""
        until = min(popped.until, self._timer_end) if popped is not None else 0
        if popped is None or until <= 0:
            done()
            return
        passed_on = msgspec.structs.replace(popped, until=until)

        def compared(is_equal: bool) -> None:
            if is_equal:
                self._steps.run(self._pop.passed_on(passed_on), acknowledged)
            else:
                done()

        def acknowledged(error: BaseException | None) -> None:
            if error is not None:
                log.warning("what a slave has passed on comes again", slave=slave, reason=str(error))
            if self._done is not None:
                done()

        self._compare_record(slave, names.TIMER_TOPIC, 0, until - 1, compared)

    def _ahead(self, accounts: dict[int, LevelAccount]) -> list[tuple[int, LevelAccount]]:
        """Return the levels of which a slave has delivered more."""
        bounded = [(level, each.bounded(self._ends.get(level, 0))) for level, each in accounts.items()]
        return [each for each in bounded if each[1].is_ahead_of(self._schedule.account_of(each[0]))]

    def _compare(self, slave: str, levels: list[tuple[int, LevelAccount]]) -> None:
        """Take over a slave's accounts, one after the other."""
        if not levels:
            self._ask_half_messages(slave)
            return
        level, account = levels.pop()

        def compared(is_equal: bool) -> None:
            if is_equal:
                self._schedule.passed_on(level, account)
                log.info(
                    "a slave has delivered messages meanwhile",
                    slave=slave, level=level, up_to=account.until, waiting=len(account.waiting),
                )  # fmt: skip
            self._compare(slave, levels)

        self._compare_record(slave, names.SCHEDULE_TOPIC, level - 1, account.until - 1, compared)

    def _wait_no_longer(self, _: MonotonicMs) -> None:
        if self._done is not None:
            log.warning(
                "slaves do not say what they have delivered; it may be delivered again", slaves=self._slaves
            )
            self._end()

    def _end(self) -> None:
        done, self._done = self._done, None
        self._give_up.cancel()
        self._transactions.open.held_before = 0
        if done is not None:
            done()
