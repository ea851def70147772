"""Messages popped ahead: when a simple consumer requests the next ones early, how long they are kept, and
when they go back.

At most one pop is under way or kept. What it brought goes to the next `receive` on the same terms, and back
to the broker once it has been kept for too long (`kept_ms`), when a subscription has changed, or at the
end: it is visible again then. Brokers of ours count no attempt, so that nothing becomes a dead letter that no
program has seen; Apache's count one, as after any `nack`.

    each `receive` came back full, soon after the one before, and no other is under way     pop ahead
    anything else                                                                           wait for the next

The invisible time of messages that were popped ahead runs already, and no other member gets them meanwhile.
So this is done at a small fraction of that time only; what the program does not fetch soon is given back.
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


#: Ours: the part of the invisible time, and the time, that a program may take between two receives.
GAP_PART: Final = 100
GAP_MS_MAX: Final = 1_000
#: Ours: the part of the invisible time, and the time, for which messages are kept that were popped ahead.
KEPT_PART: Final = 10
KEPT_MS_MAX: Final = 5_000
#: Ours: full receives, one soon after another, before the next messages are popped ahead.
FULL_MIN: Final = 2


def kept_ms(invisible_ms: int) -> int:
    """Return how long messages may be kept that were popped ahead, from the moment of their request on."""
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
        """Note that a receive returned so many messages; return whether to pop the next ones now."""
        self._under_way -= 1
        self._returned_ms = now_ms
        self._full = self._full + 1 if count == count_max else 0
        return self._full >= FULL_MIN and not self._under_way

    def failed(self) -> None:
        """Note that a receive failed, or was cancelled."""
        self._under_way -= 1
        self._full = 0


class PopAnswer:
    """The answer to one request, of what was popped at a place. Its messages are decoded when looked at.

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
        """Return how many messages they are."""
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
        """Take the first messages out; the others remain here."""
        taken = Brought(self.topic, ())
        taken._messages, self._messages = self.messages[:count], self.messages[count:]
        return taken


#: Ours: how long the end waits for a pop that is under way, and to give its messages back.
CLOSE_S: Final = 3.0
#: A task begins in the loop's next turn, and what it sends leaves in the one after that.
TURNS_UNTIL_SENT: Final = 2


class Terms(NamedTuple):
    """What two pops have in common whose messages are alike. subscriptions: grows when one changes."""

    invisible_ms: int
    subscriptions: int


class PoppedAhead:
    """What one consumer has popped ahead. give_back: makes a message visible again."""

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
        """Return whether a pop is under way, or has brought messages that nobody has taken."""
        return self._pop is not None

    async def start(self, pop: Coroutine[Any, Any, Brought], terms: Terms) -> None:
        """Begin a pop, as there is none; its request has left when this returns."""
        assert self._pop is None
        keep_ms = kept_ms(terms.invisible_ms)
        self._terms, self._until_ms = terms, self._monotonic_ms() + keep_ms
        self._pop = asyncio.create_task(pop)
        self._timer = asyncio.get_running_loop().call_later(keep_ms / 1000, self.drop)
        for _ in range(TURNS_UNTIL_SENT):
            await asyncio.sleep(0)

    async def take(self, count_max: int, terms: Terms) -> Brought | None:
        """Return messages that were popped ahead on these terms, waiting for them; None: pop yourself.

        Only one receive waits for a pop under way, and not longer than what that brings may be kept.
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
        """Give back what was popped ahead, once it is here."""
        if self._pop is not None:
            self.return_all(self._pop)
            self._release()

    def return_all(self, pop: asyncio.Task[Brought]) -> None:
        """Give back what a pop brings, once it is here."""
        task = asyncio.create_task(self._return_all(pop))
        self._giving_back[task] = pop
        task.add_done_callback(self._giving_back.pop)

    async def aclose(self) -> None:
        """Give back what was popped ahead; what takes too long is visible after its invisible time."""
        self.drop()
        try:
            if self._giving_back:
                await asyncio.wait([*self._giving_back], timeout=CLOSE_S)
        finally:
            self.drop()  # What another receive began meanwhile.
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
    """Return what a pop brought that has ended; None if it failed: the receive pops itself, and says why."""
    try:
        return pop.result()
    except LibraError:
        return None
