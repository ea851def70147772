"""Tests of our producer's transactions at our broker: deliveries, and checks of open transactions."""

import asyncio
import contextlib
import threading

import pytest

import libramq.sync
from libramq import LocalProtocolError, Message, MessageExt, Producer, PushConsumer
from libramq.client import TransactionState
from libramq.client.producing import transactions
from libramq.errors import BrokerError, ConfigError
from libramq.testing import Broker

TOPIC = "T"
#: A broker asks again until it has processed the answer.
SOON = {"transaction_timeout_ms": 200, "transaction_check_interval_ms": 100}
LAST = b"last"


def unknown(_: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


async def delivered(broker: Broker) -> list[bytes]:
    """Return what a new group receives from the topic, up to a message that this function sends."""
    got: list[bytes] = []
    done = asyncio.Event()

    async def handle(messages: list[MessageExt]) -> None:
        got.extend(message.body for message in messages if message.body != LAST)
        if any(message.body == LAST for message in messages):
            done.set()

    async with Producer(group="others", namesrv=broker.namesrv) as producer:
        await producer.send(Message(TOPIC, LAST))
    consumer = PushConsumer(group="G", namesrv=broker.namesrv, consume_from="earliest")
    consumer.subscribe(TOPIC, "*", handle)
    async with consumer:
        await asyncio.wait_for(done.wait(), 60)
    return sorted(got)


def broker(**options: int) -> Broker:
    return Broker(default_topic_queue_nums=1, **options)


async def test_a_block_commits_unless_it_raises_or_says_otherwise():
    async with broker() as one, Producer(namesrv=one.namesrv, check_transaction=unknown) as producer:
        async with producer.transaction(Message(TOPIC, b"done", tags="a")) as transaction:
            assert transaction.result.transaction_id == transaction.result.message_id
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message(TOPIC, b"failed")):
                print(1 / 0)
        async with producer.transaction(Message(TOPIC, b"undone")) as transaction:
            transaction.rollback()
        async with producer.transaction(Message(TOPIC, b"open")) as transaction:
            transaction.leave_open()
        async with producer.transaction(Message(TOPIC, b"large " * 2_000)) as transaction:
            transaction.rollback()
            transaction.commit()
        assert await delivered(one) == [b"done", b"large " * 2_000]


async def test_nothing_is_delivered_while_the_block_runs():
    async with (
        broker() as one,
        Producer(namesrv=one.namesrv, check_transaction=unknown) as producer,
        producer.transaction(Message(TOPIC, b"later")),
    ):
        assert await delivered(one) == []


async def test_an_interrupted_block_is_left_to_the_check():
    """Its work may have been done: only the user's function knows."""
    asked: list[bytes] = []
    began = asyncio.Event()
    checked = asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        checked.set()
        return TransactionState.COMMIT

    async with broker(**SOON) as one, Producer(namesrv=one.namesrv, check_transaction=check) as producer:

        async def work() -> None:
            async with producer.transaction(Message(TOPIC, b"interrupted")):
                began.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.wait_for(began.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(checked.wait(), 60)
        await until_visible(one, 1)
        assert {*asked} == {b"interrupted"}
        assert await delivered(one) == [b"interrupted"]


async def until_visible(one: Broker, count: int) -> None:
    """Wait until the topic has this many messages."""
    async with asyncio.timeout(60), libramq.client.Admin(namesrv=one.namesrv) as admin:
        while sum(place.max_offset for place in (await admin.topic_stats(TOPIC)).values()) < count:
            continue


class Answers:
    """A plain check function that returns these answers in turn."""

    def __init__(self, *answers: object) -> None:
        self.asked: list[MessageExt] = []
        self._answers = list(answers)

    def __call__(self, message: MessageExt) -> TransactionState:
        self.asked.append(message)
        answer = self._answers.pop(0) if self._answers else TransactionState.COMMIT
        if isinstance(answer, type):
            raise answer
        return answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    "answer", [TransactionState.UNKNOWN, ValueError, SystemExit, StopIteration, True, None, "commit"]
)
async def test_the_broker_asks_again_after_anything_but_an_answer(answer):
    check = Answers(answer)
    async with broker(**SOON) as one, Producer(namesrv=one.namesrv, check_transaction=check) as producer:
        async with producer.transaction(Message(TOPIC, b"open", keys="k")) as transaction:
            transaction.leave_open()
        await until_visible(one, 1)
        assert await delivered(one) == [b"open"]
        assert len(check.asked) >= 2
        assert {(each.topic, each.body, each.keys) for each in check.asked} == {(TOPIC, b"open", ("k",))}
        assert {each.message_id for each in check.asked} == {transaction.result.message_id}


async def test_another_producer_of_the_group_answers_for_one_that_died():
    check = Answers()
    async with broker(**SOON) as one:
        async with (
            Producer(group="P", namesrv=one.namesrv, check_transaction=unknown) as producer,
            producer.transaction(Message(TOPIC, b"orphan")) as transaction,
        ):
            transaction.leave_open()
        async with Producer(group="P", namesrv=one.namesrv, check_transaction=check) as producer:
            async with producer.transaction(Message(TOPIC, b"own")):  # Now the broker knows it.
                pass
            await until_visible(one, 2)
            assert await delivered(one) == [b"orphan", b"own"]
            assert {each.body for each in check.asked} == {b"orphan"}


async def test_a_producer_that_sends_nothing_answers_for_one_that_died():
    """Brokers used to learn of it with its first send, and gave up the transactions of the dead one."""
    check = Answers()
    async with broker(**SOON) as one:
        async with (
            Producer(group="P", namesrv=one.namesrv, check_transaction=unknown) as producer,
            producer.transaction(Message(TOPIC, b"orphan")) as transaction,
        ):
            transaction.leave_open()
        async with Producer(group="P", namesrv=one.namesrv, check_transaction=check):
            await until_visible(one, 1)
        assert {each.body for each in check.asked} == {b"orphan"}


async def test_without_a_check_there_are_no_transactions():
    async with broker() as one, Producer(namesrv=one.namesrv) as producer:
        with pytest.raises(LocalProtocolError, match="check_transaction"):
            async with producer.transaction(Message(TOPIC, b"x")):
                raise AssertionError("the block began")
    with pytest.raises(ConfigError, match="check_transaction"):
        Producer(check_transaction="commit")  # type: ignore[arg-type]


async def test_a_broker_that_refuses_transactions_says_so_before_the_block():
    one = Broker(reject_transaction_message=True)
    async with one, Producer(namesrv=one.namesrv, check_transaction=unknown) as producer:
        with pytest.raises(BrokerError):
            async with producer.transaction(Message(TOPIC, b"x")):
                raise AssertionError("the block began")


def test_blocking_code_has_them_too():
    check = Answers()
    with (
        broker(**SOON) as one,
        libramq.sync.Producer(namesrv=one.namesrv, check_transaction=check) as producer,
    ):
        with producer.transaction(Message(TOPIC, b"done")):
            pass
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(TOPIC, b"failed")):
            print(1 / 0)
        with pytest.raises(KeyboardInterrupt), producer.transaction(Message(TOPIC, b"interrupted")):
            raise KeyboardInterrupt
        asyncio.run(until_visible(one, 2))
        assert asyncio.run(delivered(one)) == [b"done", b"interrupted"]
        assert {each.body for each in check.asked} == {b"interrupted"}


def test_a_producer_that_is_stopped_in_a_block_hides_no_error_of_the_block():
    """The block's own error used to be lost, and a block without one failed."""
    with broker() as one:
        producer = libramq.sync.Producer(namesrv=one.namesrv, check_transaction=unknown)

        def stop_in_a_block(error: Exception | None) -> None:
            producer.start()
            with producer.transaction(Message(TOPIC, b"left to the check")):
                producer.stop()
                if error is not None:
                    raise error

        stop_in_a_block(None)
        with pytest.raises(ZeroDivisionError):
            stop_in_a_block(ZeroDivisionError())


class HangingCheck:
    """A check function that does not return for some messages, cancelled or not, until it is over."""

    def __init__(self, hangs: bytes) -> None:
        self.over = threading.Event()
        self._hangs = hangs

    async def coroutine(self, message: MessageExt) -> TransactionState:
        while message.body.startswith(self._hangs) and not self.over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
        return TransactionState.COMMIT

    def function(self, message: MessageExt) -> TransactionState:
        if message.body.startswith(self._hangs):
            self.over.wait(60)
        return TransactionState.COMMIT


async def leave_open(producer: Producer, *bodies: bytes) -> None:
    for body in bodies:
        async with producer.transaction(Message(TOPIC, body)) as transaction:
            transaction.leave_open()


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_a_check_that_hangs_stops_neither_the_others_nor_the_stop(kind, caplog):
    """One after the other they would wait for it until the broker gives them up."""
    check = HangingCheck(b"hangs")
    others = [b"%d" % number for number in range(9)]
    async with broker(**SOON) as one:
        producer = Producer(namesrv=one.namesrv, check_transaction=getattr(check, kind))
        await producer.start()
        await leave_open(producer, b"hangs", *others)
        await until_visible(one, len(others))
        async with asyncio.timeout(30):
            await producer.stop()
        check.over.set()
        assert ("check_transaction ignores its cancellation" in caplog.text) == (kind == "coroutine")
        assert await delivered(one) == others


async def test_checks_that_hang_make_room_for_others_and_still_count(monkeypatch, caplog):
    """A database may answer late, for many transactions at once."""
    monkeypatch.setattr(transactions, "CHECK_SECONDS", 0.05)
    check = HangingCheck(b"hangs")
    hanging = [b"hangs %02d" % number for number in range(transactions.CHECKS_AT_ONCE + 1)]
    async with (
        broker(**SOON) as one,
        Producer(namesrv=one.namesrv, check_transaction=check.coroutine) as producer,
    ):
        await leave_open(producer, *hanging, b"quick")
        await until_visible(one, 1)
        assert "check_transaction has not returned in time" in caplog.text
        check.over.set()
        await until_visible(one, len(hanging) + 1)
        assert await delivered(one) == [*hanging, b"quick"]


async def test_a_check_that_ended_in_time_is_never_counted_as_overdue(monkeypatch):
    """The second is checked after the time of the first is over."""
    monkeypatch.setattr(transactions, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(transactions, "OVERDUE_MAX", 1)
    async with broker(**SOON) as one, Producer(namesrv=one.namesrv, check_transaction=Answers()) as producer:
        for number in (1, 2):
            await leave_open(producer, b"quick")
            await until_visible(one, number)


def test_a_check_that_hangs_does_not_stop_a_blocking_producer_from_stopping():
    check = HangingCheck(b"hangs")
    with broker(**SOON) as one:
        producer = libramq.sync.Producer(namesrv=one.namesrv, check_transaction=check.function)
        producer.start()
        for body in (b"hangs", b"quick"):
            with producer.transaction(Message(TOPIC, body)) as transaction:
                transaction.leave_open()
        asyncio.run(until_visible(one, 1))
        stopping = threading.Thread(target=producer.stop, daemon=True)
        stopping.start()
        stopping.join(30)
        check.over.set()
        assert not stopping.is_alive()
        assert asyncio.run(delivered(one)) == [b"quick"]
