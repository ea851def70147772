"""Messages popped ahead: when a simple consumer requests the next messages early, how long it keeps them, and
when it returns them.

At most one pop is in flight or kept. Its messages go to the next `receive` on the same terms, or back to the
broker if they have been kept for too long (`kept_ms`), a subscription has changed, or the consumer stops:
then they are visible again. LibraMQ's brokers count no attempt, so messages that no program has seen never
become dead letters; Apache's count one, as after any `nack`.

    each `receive` came back full, soon after the one before, and no other is in flight     pop ahead
    anything else                                                                           wait for the next

The invisible time of messages popped ahead is already running, and no other member gets them meanwhile. So
they are kept for a small fraction of that time only, and returned unless the program fetches them soon.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from libramq.client.popping.popped import Place, count_of, messages_of
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, RemoteError
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.rpc.pop_calls import PopReply

log = get_logger(__name__)


#: Ours: the longest time between two quick receives is the invisible time divided by this.
GAP_PART: Final = 100
#: Ours: the longest time between two quick receives in any case.
GAP_MS_MAX: Final = 1_000
#: Ours: messages popped ahead are kept for the invisible time divided by this.
KEPT_PART: Final = 10
#: Ours: how long messages popped ahead are kept at most.
KEPT_MS_MAX: Final = 5_000
#: Ours: full receives, one soon after another, before the next messages are popped ahead.
FULL_MIN: Final = 2


def kept_ms(invisible_ms: int) -> int:
    """Return how long messages popped ahead may be kept, counted from their request."""
    return min(invisible_ms // KEPT_PART, KEPT_MS_MAX)


class Pace:
    """The pace of a program that receives, which shows whether it will soon want the next messages."""

    def __init__(self) -> None:
        self._under_way = 0
        self._full = 0
        self._returned_ms: MonotonicMs | None = None

    def called(self, invisible_ms: int, now_ms: MonotonicMs) -> None:
        """Note the call of a receive."""
        self._under_way += 1
        gap_ms_max = min(invisible_ms // GAP_PART, GAP_MS_MAX)
        if self._returned_ms is None or now_ms - self._returned_ms > gap_ms_max:
            self._full = 0

    def returned(self, count: int, count_max: int, now_ms: MonotonicMs) -> bool:
        """Note how many messages a receive returned; return whether to pop the next ones now."""
        self._under_way -= 1
        self._returned_ms = now_ms
        self._full = self._full + 1 if count == count_max else 0
        return self._full >= FULL_MIN and not self._under_way

    def failed(self) -> None:
        """Note that a receive failed, or was cancelled."""
        self._under_way -= 1
        self._full = 0


class PopAnswer:
    """The answer to one pop at a place. Its messages are decoded on first access.

    So a program's next pop can leave before the last one is decoded, and the broker reads meanwhile.
    """

    def __init__(self, reply: PopReply, place: Place) -> None:
        self._reply: PopReply | None = reply
        self._place = place
        self._messages: list[MessageExt] = []
        self.count = count_of(reply)

    @property
    def messages(self) -> list[MessageExt]:
        """Return the messages; raises RemoteError for an answer that cannot be read."""
        if self._reply is not None:
            place = self._place
            self._messages = messages_of(self._reply, place.broker_name, place.topic) if self.count else []
            self._reply = None
        return self._messages


class Brought:
    """The messages of one topic at one broker."""

    def __init__(self, topic: str, answers: Sequence[PopAnswer]) -> None:
        self.topic = topic
        self._answers = answers
        self._messages: list[MessageExt] | None = None

    @property
    def count(self) -> int:
        """Return the number of messages."""
        if self._messages is not None:
            return len(self._messages)
        return sum(answer.count for answer in self._answers)

    @property
    def messages(self) -> list[MessageExt]:
        """Return the messages; raises RemoteError for an answer that cannot be read."""
        if self._messages is None:
            self._messages = [message for answer in self._answers for message in answer.messages]
        return self._messages

    def first(self, count: int) -> "Brought":
        """Remove and return the first messages."""
        taken = Brought(self.topic, ())
        taken._messages, self._messages = self.messages[:count], self.messages[count:]
        return taken


#: Ours: how long closing waits for a pop in flight and for the return of its messages.
CLOSE_S: Final = 3.0
#: A task begins in the loop's next turn, and what it sends leaves in the one after that.
TURNS_UNTIL_SENT: Final = 2


class Terms(NamedTuple):
    """The terms of a pop; messages of equal terms are alike. subscriptions: grows when one changes."""

    invisible_ms: int
    subscriptions: int


class PoppedAhead:
    """The messages that one consumer has popped ahead. give_back: makes a message visible again."""

    def __init__(
        self, give_back: Callable[[MessageExt], Awaitable[None]], monotonic_ms: Callable[[], MonotonicMs]
    ) -> None:
        self._give_back = give_back
        self._monotonic_ms = monotonic_ms
        self._pop: asyncio.Task[Brought] | None = None
        self._is_awaited = False
        self._terms = Terms(0, 0)
        self._until_ms = MonotonicMs(0)
        self._timer: asyncio.TimerHandle | None = None
        self._giving_back: dict[asyncio.Task[None], asyncio.Task[Brought]] = {}

    @property
    def has_any(self) -> bool:
        """Return whether a pop is in flight, or has messages left to take."""
        return self._pop is not None

    async def start(self, pop: Coroutine[Any, Any, Brought], terms: Terms) -> None:
        """Begin a pop; its request has left when this returns. There must be no other pop."""
        assert self._pop is None
        keep_ms = kept_ms(terms.invisible_ms)
        self._terms, self._until_ms = terms, self._monotonic_ms() + keep_ms
        self._pop = asyncio.create_task(pop)
        self._timer = asyncio.get_running_loop().call_later(keep_ms / 1000, self.drop)
        for _ in range(TURNS_UNTIL_SENT):
            await asyncio.sleep(0)

    async def take(self, count_max: int, terms: Terms) -> Brought | None:
        """Wait for messages popped ahead on these terms, and return them; None: the caller must pop.

        Only one receive waits for a pop in flight, and no longer than its messages may be kept.
        """
        pop = self._pop
        if pop is None or self._is_awaited:
            return None
        if terms == self._terms and not pop.done():
            self._is_awaited = True
            try:
                left_ms = max(0, self._until_ms - self._monotonic_ms())
                await asyncio.wait([pop], timeout=left_ms / 1000)
            finally:
                self._is_awaited = False
            if self._pop is not pop:  # Its time is over.
                return None
        if terms != self._terms or self._monotonic_ms() > self._until_ms or not pop.done():
            self.drop()
            return None
        brought = _result(pop)
        if brought is not None and brought.count > count_max:
            try:
                return brought.first(count_max)
            except RemoteError:  # No later receive could read it either.
                self._release()
                raise
        self._release()
        return brought if brought is not None and brought.count else None

    def drop(self) -> None:
        """Return messages popped ahead to the broker, once they have arrived."""
        if self._pop is not None:
            self.return_all(self._pop)
            self._release()

    def return_all(self, pop: asyncio.Task[Brought]) -> None:
        """Return the messages of a pop to the broker, once they have arrived."""
        task = asyncio.create_task(self._return_all(pop))
        self._giving_back[task] = pop
        task.add_done_callback(self._giving_back.pop)

    async def aclose(self) -> None:
        """Return messages popped ahead; those that take too long reappear after their invisible time."""
        self.drop()
        try:
            if self._giving_back:
                await asyncio.wait([*self._giving_back], timeout=CLOSE_S)
        finally:
            self.drop()  # Another receive may have begun a pop meanwhile.
            for task, pop in self._giving_back.items():
                pop.cancel()
                task.cancel()

    def _release(self) -> None:
        self._pop = None
        if self._timer is not None:
            self._timer.cancel()

    async def _return_all(self, pop: asyncio.Task[Brought]) -> None:
        await asyncio.wait([pop])
        brought = _result(pop)
        if brought is None:
            return
        try:
            returned = [self._give_back(message) for message in brought.messages]
            outcomes = await asyncio.gather(*returned, return_exceptions=True)
        except RemoteError as error:  # The answer cannot be read.
            outcomes = [error]
        errors = [each for each in outcomes if isinstance(each, BaseException)]
        if errors:
            log.warning(
                "messages that were popped ahead stay invisible for their whole time",
                failed=len(errors),
                reason=str(errors[0]),
            )


def _result(pop: asyncio.Task[Brought]) -> Brought | None:
    """Return the result of a finished pop; None if it failed: the receive pops itself, and raises why."""
    try:
        return pop.result()
    except LibraError:
        return None
