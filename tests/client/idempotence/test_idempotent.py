"""Tests of idempotent handlers: the messages that reach the user's handler, and the consumer's results."""

import asyncio
import threading

import pytest

from libramq.client import Reject, Retry
from libramq.client.consuming.handling.handler_result import Busy
from libramq.client.idempotence import ClaimResult, MemoryStore, SqliteStore, idempotent
from libramq.errors import ConfigError, InvalidResult
from tests.client.consuming.examples import message


class Handler:
    """A handler that keeps the messages that reach it. failures: how its first calls fail."""

    def __init__(self, *failures):
        self.offsets = []
        self.results = []
        self._failures = list(failures)

    def __call__(self, messages):
        self.offsets.append([each.queue_offset for each in messages])
        if self._failures:
            failure = self._failures.pop(0)
            if failure is not False:
                raise failure
            return False
        return self.results.pop(0) if self.results else None

    async def as_coroutine(self, messages):
        await asyncio.sleep(0)
        return self(messages)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
        return
    store = SqliteStore(tmp_path / "handled.db")
    yield store
    store.close()


@pytest.fixture(params=["plain", "coroutine"])
def wrapped(request, store):
    """Wrap a handler; blocking and asynchronous ones are called alike."""

    def wrap(handler, **options):
        if request.param == "plain":
            inner = idempotent(handler, store=store, **options)

            async def call(*messages):
                return await asyncio.to_thread(inner, list(messages))

            return call
        inner = idempotent(handler.as_coroutine, store=store, **options)
        return lambda *messages: inner(list(messages))

    return wrap


async def test_a_repeated_message_is_not_handled_again(wrapped):
    """Others of its batch are handled."""
    handler = Handler()
    call = wrapped(handler)
    assert await call(message(1), message(2)) is True
    assert await call(message(2), message(3), message(3)) is True
    assert await call(message(3)) is True
    assert handler.offsets == [[1, 2], [3]]


@pytest.mark.parametrize("failure", [False, ZeroDivisionError()], ids=["false", "raises"])
async def test_a_failed_message_is_not_marked_as_done(wrapped, failure):
    """It reaches the handler again."""
    handler = Handler(failure)
    call = wrapped(handler)
    if failure is False:
        assert await call(message(1)) is False
    else:
        with pytest.raises(ZeroDivisionError):
            await call(message(1))
    assert await call(message(1)) is True
    assert handler.offsets == [[1], [1]]


async def test_a_message_in_another_handler_is_retried(store, wrapped):
    """The other handler may fail. The rest of the batch is done."""
    handler = Handler()
    call = wrapped(handler)
    assert store.claim([":T:id-1"], "another") == [ClaimResult.NEW]
    assert await call(message(1), message(2)) == [Busy(messages=[message(1)], within=30)]
    store.release([":T:id-1"], "another")
    assert await call(message(1), message(2)) is True
    assert handler.offsets == [[2], [1]]


async def test_a_failure_concerns_only_the_messages_that_were_handled(store, wrapped):
    """A message claimed by another handler counts no attempt, however this call ends."""
    assert store.claim([":T:id-1"], "another") == [ClaimResult.NEW]
    call = wrapped(Handler(False, ZeroDivisionError()))
    for _ in range(2):
        assert await call(message(1), message(2)) == [
            Retry(messages=[message(2)]), Busy(messages=[message(1)], within=30),
        ]  # fmt: skip


async def test_only_unfinished_messages_of_a_batch_are_handled_again(store, wrapped):
    """Claims of a retried and of a rejected message are released; the others are marked as done."""
    handler = Handler()
    handler.results = [[Retry(messages=[message(2)], after=1.5), Reject(messages=[message(3)])]]
    call = wrapped(handler)
    assert await call(message(1), message(2), message(3)) == [
        Retry(messages=[message(2)], after=1.5), Reject(messages=[message(3)]),
    ]  # fmt: skip
    assert await call(message(1), message(2), message(3)) is True
    assert handler.offsets == [[1, 2, 3], [2, 3]]


async def test_messages_of_two_queues_may_have_one_offset(wrapped):
    """Popped messages come from several queues: failed ones are identified by queue and offset."""
    handler = Handler()
    failed, done = message(1), message(1, queue_id=1)
    done.properties["UNIQ_KEY"] = "another"
    handler.results = [Retry(messages=[failed])]
    call = wrapped(handler)
    assert await call(failed, done) == [Retry(messages=[failed])]
    assert await call(done) is True
    assert handler.offsets == [[1, 1]]


async def test_an_invalid_result_marks_nothing_as_done(wrapped):
    """It raises an error, and the messages are redelivered."""
    handler = Handler()
    handler.results = ["done"]
    call = wrapped(handler)
    with pytest.raises(InvalidResult):
        await call(message(1))
    assert await call(message(1)) is True


async def test_an_awaitable_returned_by_a_plain_handler_is_awaited(store):
    """A lambda may call a coroutine function; when that fails, the claim is released."""
    handler = Handler(ZeroDivisionError())
    inner = idempotent(lambda messages: handler.as_coroutine(messages), store=store)  # noqa: PLW0108
    with pytest.raises(ZeroDivisionError):
        await (await asyncio.to_thread(inner, [message(1)]))
    assert await (await asyncio.to_thread(inner, [message(1)])) is True
    assert handler.offsets == [[1], [1]]


async def test_concurrent_calls_handle_a_message_once(wrapped, store):
    """The other calls request a redelivery, or find the message done."""
    handler = Handler()
    call = wrapped(handler)
    answers = await asyncio.gather(*(call(message(1)) for _ in range(8)))
    assert handler.offsets == [[1]]
    assert True in answers


async def test_a_cancelled_handler_releases_its_claim(store):
    """A handler that fails does the same."""
    began = asyncio.Event()

    async def handle(messages):
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(idempotent(handle, store=store)([message(1)]))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.claim([":T:id-1"], "another") == [ClaimResult.NEW]


async def test_a_blocking_store_does_not_hold_up_the_loop(tmp_path):
    """Its methods are called on threads."""
    threads = set()

    class Watched(SqliteStore):
        def claim(self, keys, owner):
            threads.add(threading.current_thread())
            return super().claim(keys, owner)

    store = Watched(tmp_path / "handled.db")
    await idempotent(Handler().as_coroutine, store=store)([message(1)])
    store.close()
    assert threading.current_thread() not in threads


def with_keys(offset, *keys):
    found = message(offset)
    found.properties["KEYS"] = " ".join(keys)
    return found


async def test_by_key_a_message_sent_twice_is_handled_once(wrapped):
    """Its unique ids do not matter. A message without keys is identified by its id."""
    handler = Handler()
    call = wrapped(handler, key="key")
    await call(with_keys(1, "order-7"))
    await call(with_keys(2, "order-7"), with_keys(3), with_keys(4))
    assert handler.offsets == [[1], [3, 4]]


async def test_a_function_may_compute_the_key(wrapped):
    """The key may have any length."""
    handler = Handler()
    call = wrapped(handler, key=lambda each: "x" * 5000 + str(each.queue_offset // 2))
    await call(message(2), message(3), message(4))
    assert handler.offsets == [[2, 4]]


async def test_scopes_are_separate(wrapped):
    """Two groups may share a store."""
    one, two = Handler(), Handler()
    await wrapped(one, scope="one")(message(1))
    await wrapped(two, scope="two")(message(1))
    assert one.offsets == two.offsets == [[1]]


async def test_a_message_without_id_is_recognised_after_a_retry(wrapped):
    """It is identified by the place where it was stored first."""
    handler = Handler()
    call = wrapped(handler)
    first, again = message(1), message(9)
    del first.properties["UNIQ_KEY"], again.properties["UNIQ_KEY"]
    again.properties["ORIGIN_MESSAGE_ID"] = first.offset_id
    await call(first)
    await call(again)
    assert handler.offsets == [[1]]


def test_an_unknown_kind_of_key_is_refused():
    """The error names it."""
    with pytest.raises(ConfigError, match="not 'tag'"):
        idempotent(Handler(), store=MemoryStore(), key="tag")
