"""Messages claimed by another handler: no attempt counts until that handler or its claim ends."""

import contextlib
import threading

import pytest

from libramq import Message
from libramq.client import ConsumeFrom, Producer, PushConsumer
from libramq.client.consuming.handling.handler_result import Busy
from libramq.client.idempotence import ClaimResult, MemoryStore, SqliteStore, idempotent
from libramq.errors import ConfigError
from libramq.testing import Broker
from tests.fakes import ManualClock

LEASE_MS = 1_000
MODES = {
    "concurrent": {},
    "in order": {"orderly": True},
    "popping": {"pop": True, "consume_from": "earliest"},
    "broadcasting": {"broadcasting": True},
}
#: The second attempt comes after the third level, ten seconds by default.
DELAYS = "1s 1s 1s 1s 1s"


@pytest.fixture
def claimed_by_a_dead_process(tmp_path):
    """A store in which the only message is claimed already."""
    store = SqliteStore(tmp_path / "handled.db", lease_ms=LEASE_MS)
    assert store.claim([":T:x"], "dead") == [ClaimResult.NEW]
    yield store
    store.close()


class Kept:
    def __init__(self, watch):
        self.attempts = []
        self._watch = watch

    def __call__(self, messages):
        self.attempts += [message.reconsume_times for message in messages]
        self._watch.touch()


def consumer(address, handler, store, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 20, "suspend_ms": 100} | options
    found = PushConsumer(group="g", namesrv=address, **options)
    found.subscribe("T", "*", idempotent(handler, store=store, key=lambda message: message.body.decode()))
    return found


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
async def test_a_dead_processes_claim_costs_no_attempt(claimed_by_a_dead_process, watch, mode, tmp_path):
    """The group allows no second attempt; the message is handled when the claim is over."""
    handler = Kept(watch)
    with Broker() as broker:
        async with Producer(group="p", namesrv=broker.namesrv) as producer:
            await producer.send(Message("T", b"x"))
        options = mode | ({"local_offsets": tmp_path} if mode.get("broadcasting") else {})
        reader = consumer(
            broker.namesrv, handler, claimed_by_a_dead_process, max_reconsume_times=0, **options
        )
        async with reader:
            await watch.until(lambda: handler.attempts)
    assert handler.attempts == [0]


@pytest.mark.parametrize("orderly", [False, True])
async def test_at_a_broker_that_counts_every_return_the_message_is_kept(
    claimed_by_a_dead_process, namesrv, broker, watch, orderly
):
    """Nothing is sent back to a stock broker, and the offset passes the message once it is handled."""
    handler = Kept(watch)
    broker.put("T", 0, b"x")
    async with consumer(namesrv.address, handler, claimed_by_a_dead_process, orderly=orderly):
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 1)
    assert handler.attempts == [0]
    assert not broker.sent_back


@pytest.fixture(params=[True, False], ids=["plain", "coroutine"])
async def in_order(request, watch):
    """Return what a consumer has handled of four messages, by its store; the second is claimed already."""
    with Broker() as broker:
        async with Producer(group="p", namesrv=broker.namesrv, default_topic_queue_nums=1) as producer:
            await producer.send_batch([Message("T", b"%d" % number) for number in range(4)])

        @contextlib.asynccontextmanager
        async def consuming(store):
            seen = []

            def handle(messages):
                seen.extend(message.body for message in messages)
                watch.touch()

            async def handle_on_loop(messages):
                handle(messages)

            assert store.claim([":T:1"], "dead") == [ClaimResult.NEW]
            handler = handle if request.param else handle_on_loop
            async with consumer(broker.namesrv, handler, store, orderly=True, batch_size=4):
                yield seen

        yield consuming


async def test_in_order_nothing_passes_a_claimed_message(watch, in_order):
    """Its owner may have been killed in the middle of a batch, and the next one's batches begin elsewhere."""
    async with in_order(MemoryStore(lease_ms=500)) as seen:
        await watch.until(lambda: len(seen) == 4)
    assert seen == [b"0", b"1", b"2", b"3"]


async def test_in_order_what_waits_behind_a_claimed_message_is_not_claimed(watch, in_order):
    """Another member may get the queue meanwhile."""
    store = MemoryStore()
    async with in_order(store) as seen:
        await watch.until(lambda: seen)
    assert seen == [b"0"]
    assert store.claim([":T:2", ":T:3"], "next") == [ClaimResult.NEW] * 2


async def test_the_claim_of_a_hanging_handler_costs_one_attempt(watch):
    """Only the hanging attempt counts. The in-memory store frees the message when the lease ends."""
    attempts, hangs = [], threading.Event()

    def handle(messages):
        attempts.append(messages[0].reconsume_times)
        watch.touch()
        if len(attempts) == 1:
            hangs.wait()

    store = MemoryStore(lease_ms=3_000)
    with Broker(message_delay_level=DELAYS) as broker:
        async with Producer(group="p", namesrv=broker.namesrv) as producer:
            await producer.send(Message("T", b"x"))
        reader = consumer(broker.namesrv, handle, store, consume_timeout_ms=200, max_reconsume_times=1)
        async with reader:
            await watch.until(lambda: len(attempts) == 2)
            hangs.set()
    assert attempts == [0, 1]


def test_a_claim_in_memory_ends_with_its_lease():
    """A later release by the former owner does not affect the new claim."""
    clock = ManualClock()
    store = MemoryStore(lease_ms=50, clock=clock)
    assert store.claim(["k"], "hanging") == [ClaimResult.NEW]
    clock.advance(49)
    assert store.claim(["k"], "next") == [ClaimResult.BUSY]
    clock.advance(1)
    assert store.claim(["k"], "next") == [ClaimResult.NEW]
    store.release(["k"], "hanging")
    assert store.claim(["k"], "third") == [ClaimResult.BUSY]


def test_busy_names_a_time_within_which_a_message_comes_again():
    with pytest.raises(ConfigError, match="within"):
        Busy(within=float("nan"))
