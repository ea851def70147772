"""Tests of `Consumer` as a member of a coordinated group, against our own broker and name server."""

import asyncio
from collections import Counter

import pytest

from libramq.client import Consumer
from libramq.errors import CommitFailed, LocalProtocolError
from tests.client.test_coordinated_consumer import QUEUES, Home


@pytest.fixture
async def home(tmp_path, watch):
    async with Home(tmp_path / "store", watch) as home:
        yield home


class Fetcher:
    """A member that counts what it handles, and keeps its messages in hand until `block` is set."""

    def __init__(self, home, watch, seen, **options):
        self.owned = set()
        self.seen = seen
        self._watch = watch
        self.block = None
        self.in_hand = 0
        self.consumer = Consumer(
            group="g",
            namesrv=home.namesrv.address,
            consume_from="earliest",
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._revoked,
            **options,
        )
        self.consumer.subscribe("T")

    def _assigned(self, queues):
        self.owned.update(queues)
        self._watch.touch()

    def _revoked(self, queues):
        self.owned.difference_update(queues)
        self._watch.touch()

    async def run(self):
        """Handle messages until the consumer is stopped."""
        async for message in self.consumer:
            self.in_hand += 1
            self._watch.touch()
            if self.block is not None:
                await self.block.wait()
            self.in_hand -= 1
            self.seen[message.body] += 1

    async def handled(self):
        """Fetch batches until no more messages arrive; return their number."""
        count = 0
        while taken := await self.consumer.getmany(timeout_ms=500):
            for messages in taken.values():
                count += len(messages)
                self.seen.update(message.body for message in messages)
        return count


async def test_a_member_that_joins_takes_half_and_no_message_comes_twice(home, watch):
    """Messages in hand when the queues move are finished and committed first."""
    seen = Counter()
    first, second = (Fetcher(home, watch, seen) for _ in range(2))
    first.block = asyncio.Event()
    await home.send(20)
    async with first.consumer, asyncio.TaskGroup() as group:
        group.create_task(first.run())
        await watch.until(lambda: first.in_hand == 1)
        async with second.consumer:
            group.create_task(second.run())
            await watch.until(
                lambda: len(second.owned) >= QUEUES // 2 - 1
            )  # One may wait for messages in hand.
            first.block.set()
            await watch.until(lambda: len(first.owned) == len(second.owned) == QUEUES // 2)
            await home.send(20)
            await watch.until(lambda: len(seen) == 40 * QUEUES)
        await watch.until(lambda: len(first.owned) == QUEUES)
        await first.consumer.stop()
    assert set(seen.values()) == {1}
    assert set(home.committed().values()) == {40}


async def test_what_is_in_hand_too_long_is_delivered_to_the_next_owner(home, watch):
    """The handover waits for revoke_timeout_ms; messages still in hand are delivered twice."""
    seen = Counter()
    first, second = (Fetcher(home, watch, seen, revoke_timeout_ms=1_000) for _ in range(2))
    first.block = asyncio.Event()
    await home.send(5)
    async with first.consumer, asyncio.TaskGroup() as group:
        group.create_task(first.run())
        await watch.until(lambda: first.in_hand == 1)
        await first.consumer.pause()
        async with second.consumer:
            group.create_task(second.run())
            await watch.until(lambda: len(second.owned) == QUEUES // 2)
            first.block.set()
            await first.consumer.resume()
            await watch.until(lambda: len(seen) == 5 * QUEUES)
        await first.consumer.stop()
    assert sum(seen.values()) <= 5 * QUEUES + 1
    assert set(home.committed().values()) == {5}


async def test_a_commit_after_the_queue_has_moved_fails(home, watch):
    """A commit of explicit offsets fails too; only those of the new owner count."""
    seen = Counter()
    first = Fetcher(home, watch, seen, auto_commit=False, revoke_timeout_ms=1_000)
    second = Fetcher(home, watch, seen)
    await home.send(2)
    async with first.consumer:
        taken = await first.consumer.getmany(timeout_ms=60_000)
        async with second.consumer:
            await watch.until(lambda: len(second.owned) == QUEUES // 2)
            moved = [queue for queue in home.queues if queue in second.owned]
            with pytest.raises((CommitFailed, LocalProtocolError)):
                await first.consumer.commit({moved[0]: 2})
            kept = [queue for queue in home.queues if queue in first.owned]
            await first.consumer.commit({kept[0]: 1})
            assert home.committed()[kept[0].queue_id] == 1
    assert taken


async def test_a_member_that_is_killed_loses_nothing(home, watch):
    """Its messages in hand and its uncommitted ones are delivered to the other member."""
    seen = Counter()
    first, second = (Fetcher(home, watch, seen, session_ms=1_000) for _ in range(2))
    await home.send(10)
    await first.consumer.start()
    await first.consumer.getmany(timeout_ms=60_000, max_records=30)
    async with second.consumer:
        await watch.until(lambda: len(second.owned) >= QUEUES // 2 - 2)
        await first.consumer._run.call(lambda network: network.end())  # As a kill: nothing more is sent.
        await watch.until(lambda: len(second.owned) == QUEUES)
        async with asyncio.timeout(60):
            while len(seen) < 10 * QUEUES:
                await second.handled()
    await first.consumer.stop()
    assert set(home.committed().values()) == {10}
    assert set(seen.values()) == {1}


async def test_a_sought_position_is_committed_although_it_is_earlier(home, watch):
    """The fence accepts the earlier offset."""
    await home.send(10)
    fetcher = Fetcher(home, watch, Counter())
    async with fetcher.consumer:
        assert await fetcher.handled() == 10 * QUEUES
        await fetcher.consumer.seek_to_beginning(home.queues[0])
        assert await fetcher.handled() == 10
        await fetcher.consumer.seek(home.queues[0], 3)
        await fetcher.consumer.commit()
        assert await fetcher.consumer.committed(home.queues[0]) == 3
