"""The positions of a consumer that fetches: where it reads, what is committed, and how far it is behind.

Upstream: DefaultLitePullConsumer.java (seek, committed).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.consumer_run import ConsumerRun
from libramq.client.consuming.fetching.fetching import Seek
from libramq.client.consuming.group_consumer import GroupConsumer
from libramq.client.options import whole_number
from libramq.errors import ConfigError, LibraError, LocalProtocolError
from libramq.message.queue import MessageQueue
from libramq.rpc import broker_calls as calls
from libramq.rpc.call import Call
from libramq.runtime.seams import Dialer

T = TypeVar("T")


class Positions(GroupConsumer[ConsumerNetwork]):
    """Reads and sets positions; the queues are assigned."""

    def _network_of(self, run: ConsumerRun[ConsumerNetwork], dialer: Dialer) -> ConsumerNetwork:
        return self._queue_network(run, dialer)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of a queue, which is between its first message and its end (ConfigError).

        What was pulled of the queue and not returned is dropped. With auto_commit the offset is committed,
        even if it is an earlier one.
        """
        check_offsets({queue: offset})
        first = await self._ask(queue, calls.min_offset(queue))
        end = await self._ask(queue, calls.max_offset(queue))
        if not first <= offset <= end:
            raise ConfigError(f"{queue} has the offsets {first} to {end}; it cannot be read from {offset}")
        await self._seek({queue: offset})

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Continue at the oldest messages of queues; of all that are assigned, if none is given."""
        await self._seek_by(queues, calls.min_offset)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue with the messages that come from now on."""
        await self._seek_by(queues, calls.max_offset)

    async def seek_to_time(self, time: datetime | int, *queues: MessageQueue) -> None:
        """Continue at the first messages stored at a time (a datetime with its zone, or ms) or later."""
        if isinstance(time, datetime) and time.tzinfo is None:
            raise ConfigError(f"the time to seek has no time zone: {time!r}")
        time_ms = int(time.timestamp() * 1000) if isinstance(time, datetime) else time
        whole_number("the time to seek", time_ms, 0)
        await self._seek_by(queues, lambda queue: calls.search_offset(queue, time_ms))

    async def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message to be returned; None while the queue is being opened."""
        return await self._running().call(lambda network: network.core.fetching.position(queue))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, as its broker (or, broadcasting, the local file) has it."""
        store = self._local_offsets
        if store is not None:
            return await self._running().call(lambda network: store.read(queue))
        return await self._ask(queue, calls.query_consumer_offset(self.group, queue))

    async def lag(self, queue: MessageQueue) -> int | None:
        """Return how many messages the position is behind the queue's end; None without a position."""
        position = await self.position(queue)
        return (
            None if position is None else max(0, await self._ask(queue, calls.max_offset(queue)) - position)
        )

    # Requests.

    async def _seek_by(
        self, queues: Sequence[MessageQueue], call: Callable[[MessageQueue], Call[int]]
    ) -> None:
        chosen = queues or await self.assignment()
        found = await asyncio.gather(*(self._ask(queue, call(queue)) for queue in chosen))
        await self._seek(dict(zip(chosen, found, strict=True)))

    async def _seek(self, offsets: Mapping[MessageQueue, int]) -> None:
        await self._running().call(lambda network: network.fetch(Seek(offsets)))

    async def _ask(self, queue: MessageQueue, call: Call[T]) -> T:
        return await self._answer(lambda network, answered: network.ask_master(queue, call, answered))

    async def _answer(self, ask: Callable[[ConsumerNetwork, Callable[[T | LibraError], None]], object]) -> T:
        try:
            return await self._running().answer(ask)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise LocalProtocolError("this consumer was stopped before the answer came") from None


def check_offsets(offsets: Mapping[MessageQueue, int]) -> None:
    """Raise ConfigError unless these are offsets of queues."""
    for queue, offset in offsets.items():
        if not isinstance(queue, MessageQueue):
            raise ConfigError(f"an offset is of a MessageQueue, not of {queue!r}")
        whole_number(f"the offset of {queue}", offset, 0)
