"""The other masters: the master and queue to which an acting slave sends each message, how many messages and
bytes may be in flight, and when a message is resent after a refusal or no answer.

    window: messages in their order ─► routes of their topics ─► each to the next queue ─► accepted, or again

A send without an answer is repeated, and may then be stored twice.
Upstream: EscapeBridge.putMessageToRemoteBroker.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from libramq.broker.config import BrokerConfig
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, LibraError
from libramq.formats.route import MASTER_ID, TopicRouteData
from libramq.formats.tables import PERM_WRITE
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK
from libramq.remoting.headers import SendMessageHeaderV2
from libramq.rpc.broker_calls import SendReply, send_message
from libramq.rpc.name_server_calls import topic_route
from libramq.rpc.question import Ask, Question

log = get_logger(__name__)

#: Ours: the delay before a refused message is resent, and before an empty route is fetched again.
AGAIN_MS: Final = 1_000
#: Ours: the age at which a route is fetched again.
ROUTE_MS: Final = 30_000
ANSWER_MS_MAX: Final = 3_000
#: Ours: the bytes of messages read in one turn and sent at once, not counting the last message.
WINDOW_BYTES_MAX: Final = 1024 * 1024
#: Ours: at most this many topics' routes are cached.
ROUTES_MAX: Final = 10_000


class Window:
    """Messages in the order of their queue; an accepted message is replaced by None.

    awaited: the places of the messages in flight. refusals: the number of refusals by place.
    """

    def __init__(self, messages: list[MessageExt], end_offset: int) -> None:
        self.messages: list[MessageExt | None] = list(messages)
        self.offsets = frozenset(each.queue_offset for each in messages)
        self.awaited: set[int] = set()
        self.refusals: dict[int, int] = {}
        self.again_ms = MonotonicMs(0)
        self.end_offset = end_offset

    @property
    def next_offset(self) -> int:
        """Return the offset of the first message not yet accepted."""
        return next((each.queue_offset for each in self.messages if each is not None), self.end_offset)

    @property
    def left(self) -> set[int]:
        """Return the offsets of the messages not yet accepted."""
        return {each.queue_offset for each in self.messages if each is not None}

    @property
    def is_done(self) -> bool:
        """Return whether everything was accepted."""
        return not any(each is not None for each in self.messages)


class Retry(NamedTuple):
    """A message's next attempt. of_topic: sent to masters that have this topic; they create its retry topic.

    times_max: after more attempts the message becomes a dead letter there.
    """

    of_topic: str
    times: int
    times_max: int | None


class Outgoing(NamedTuple):
    """A message for another master. group: its producer's, or None for the slave's own.

    transaction: the transaction bits of the message's system flag.
    """

    topic: str
    properties: dict[str, str]
    group: str | None = None
    transaction: int = 0
    retry: Retry | None = None


class OtherMasters:
    """Sends windows. name_server: returns the one to ask for routes; ready: called when a route arrives."""

    def __init__(
        self,
        kernel: Kernel,
        ask: Ask,
        *,
        config: BrokerConfig,
        name_server: Callable[[], str],
        ready: Callable[[], None],
    ) -> None:
        self._clock = kernel.clock
        self._ask = ask
        self._name = config.broker_name
        self._sender = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self._name_server = name_server
        self._ready = ready
        self._routes: dict[str, tuple[MonotonicMs, list[tuple[str, int]]]] = {}
        self._pending_routes: set[str] = set()
        self._reported: set[str] = set()
        self._turn = 0

    def send(
        self, window: Window, outgoing: Callable[[MessageExt], Outgoing], accepted: Callable[[], None]
    ) -> None:
        """Send messages neither accepted nor in flight. accepted: called after each acceptance."""
        now_ms = self._clock.monotonic_ms()
        for place, message in enumerate(window.messages):
            if message is None or place in window.awaited or now_ms < window.again_ms:
                continue
            out = outgoing(message)
            queues = self._queues(out.topic if out.retry is None else out.retry.of_topic, now_ms)
            if queues:
                self._turn += 1
                address, queue_id = queues[self._turn % len(queues)]
                if out.retry is not None and out.retry.of_topic != out.topic:
                    queue_id = 0
                window.awaited.add(place)
                call = send_message(self._header(message, out, queue_id), message.body)
                self._ask(
                    Question(address, call, partial(self._sent, window, place, accepted), ANSWER_MS_MAX)
                )

    def _sent(
        self, window: Window, place: int, accepted: Callable[[], None], answer: SendReply | LibraError
    ) -> None:
        window.awaited.discard(place)
        if isinstance(answer, LibraError):
            say = log.debug if window.refusals.get(place) else log.warning
            say("another master did not accept a message; it will be sent again", reason=str(answer))
            window.again_ms = self._clock.monotonic_ms() + AGAIN_MS
            if isinstance(answer, BrokerError):
                window.refusals[place] = window.refusals.get(place, 0) + 1
        else:
            window.messages[place] = None
            accepted()

    # Routes.

    def has(self, topic: str) -> bool | None:
        """Return whether another master has a topic; None while that is unknown."""
        queues = self._queues(topic, self._clock.monotonic_ms())
        return bool(queues) if topic in self._routes else None

    def _queues(self, topic: str, now_ms: MonotonicMs) -> list[tuple[str, int]]:
        """Return the queues of a topic at other masters, once they are known."""
        queried_ms, queues = self._routes.get(topic, (None, []))
        is_new = queried_ms is None or now_ms - queried_ms >= (ROUTE_MS if queues else AGAIN_MS)
        if is_new and topic not in self._pending_routes:
            self._pending_routes.add(topic)
            routed = partial(self._routed, topic)
            self._ask(Question(self._name_server(), topic_route(topic), routed, ANSWER_MS_MAX))
        return queues

    def _routed(self, topic: str, route: TopicRouteData | LibraError) -> None:
        self._pending_routes.discard(topic)
        now_ms = self._clock.monotonic_ms()
        queues = [] if isinstance(route, LibraError) else self._others(route)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = now_ms, queues
        if queues:
            self._reported.discard(topic)
            self._ready()
        elif topic not in self._reported and len(self._reported) < ROUTES_MAX:
            self._reported.add(topic)
            log.warning("messages wait for the master: no other master has their topic", topic=topic)

    def _others(self, route: TopicRouteData) -> list[tuple[str, int]]:
        """Return the address and id of each writable queue at other masters."""
        masters = {each.broker_name: each.broker_addrs.get(MASTER_ID) for each in route.broker_datas}
        masters.pop(self._name, None)
        return [
            (address, queue_id)
            for each in route.queue_datas
            if each.perm & PERM_WRITE and (address := masters.get(each.broker_name)) is not None
            for queue_id in range(each.write_queue_nums)
        ]

    def _header(self, message: MessageExt, out: Outgoing, queue_id: int) -> SendMessageHeaderV2:
        retry = out.retry or Retry(
            out.topic,
            message.reconsume_times,
            p.whole_number(out.properties.get(p.MAX_RECONSUME_TIMES, ""), digits_max=9),
        )
        kept_flag = message.sys_flag & ~(TRANSACTION_MASK | BORN_HOST_V6 | STORE_HOST_V6)
        return SendMessageHeaderV2(
            producer_group=self._sender if out.group is None else out.group,
            topic=out.topic,
            default_topic=names.AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=kept_flag | out.transaction,
            born_timestamp=message.born_timestamp_ms,
            flag=message.flag,
            properties=p.properties_to_text(out.properties),
            reconsume_times=retry.times,
            unit_mode=False,
            batch=False,
            max_reconsume_times=retry.times_max,
        )
