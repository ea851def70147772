"""Escaping: an acting slave sends messages whose delay is over to other masters that have their topic.

    acting? ─► confirmed by a name server, every 3 s ─► due messages of a level, 32 at once
                  ─► the routes of their topics ─► sent, each to the next queue ─► the level's offset

Nothing is stored here: a slave has the log of its master and nothing else. A level waits until all of its
messages have been accepted, so nothing is lost; a send without an answer is repeated, and may then be stored
twice. The slave with the lowest id sends, while the name server knows no master.

A master that returns asks for the offsets of the levels before it delivers (`slaves_progress.py`). From then
on nothing more is sent.

Upstream: EscapeBridge.java, ScheduleMessageService.java, BrokerController.changeScheduleServiceStatus.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.broker.messages.rounds import Rounds
from libramq.broker.messages.schedule import DelaySchedule
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.formats.route import MASTER_ID, TopicRouteData
from libramq.formats.tables import PERM_WRITE
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK
from libramq.remoting.body.route import ClusterInfo
from libramq.remoting.headers import SendMessageHeaderV2
from libramq.rpc.broker_calls import SendReply, send_message
from libramq.rpc.name_server_calls import cluster_info, topic_route
from libramq.rpc.question import Ask, Question
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: Ours: how often the slave looks whether it has to act, and how soon a refused message is sent again.
AGAIN_MS: Final = 1_000
#: Ours: how soon a level is looked at that has more.
SOON_MS: Final = 10
#: Ours: for how long a name server's answer counts.
CONFIRMED_MS: Final = 3_000
ROUTE_MS: Final = 30_000
ANSWER_MS_MAX: Final = 3_000
#: Ours: how long nothing is sent after a master has asked for the offsets. By then it is registered.
PAUSE_MS: Final = 60_000
#: Ours: topics whose routes are kept.
ROUTES_MAX: Final = 10_000

_DROPPED: Final = (p.DELAY, p.REAL_TOPIC, p.REAL_QUEUE_ID, p.TRANSACTION_PREPARED, *p.TIMER_REQUESTS)


class Escaping:
    """Delivers the levels of a slave. is_acting: whether the slave acts; name_server: whom to ask.

    reached: called when the offset of a level has moved: it is to be written soon.
    """

    def __init__(
        self,
        *,
        schedule: DelaySchedule,
        store: MessageStore,
        kernel: Kernel,
        broker: tuple[str, int],
        ask: Ask,
        name_server: Callable[[], str],
        is_acting: Callable[[], bool],
        reached: Callable[[], None],
    ) -> None:
        self._schedule = schedule
        self._store = store
        self._clock = kernel.clock
        self._name, self._id = broker
        self._ask = ask
        self._name_server = name_server
        self._is_acting = is_acting
        self._reached = reached
        self._rounds = Rounds(store, kernel, self._act, again_ms=AGAIN_MS)
        self._rounds.by(self._clock.monotonic_ms() + AGAIN_MS)
        self._confirmed_until_ms = self._paused_until_ms = self._clock.monotonic_ms()
        self._is_asking = self._was_acting = False
        self._windows: dict[int, _Window] = {}
        self._routes: dict[str, tuple[MonotonicMs, list[tuple[str, int]]]] = {}
        self._asked_routes: set[str] = set()
        self._turn = 0
        self._reported: set[str] = set()

    def pause(self) -> bool:
        """Send nothing more for a while: a master is back. Return whether answers are still awaited."""
        self._paused_until_ms = self._clock.monotonic_ms() + PAUSE_MS
        return any(window.awaited for window in self._windows.values())

    def _may_send(self, now_ms: MonotonicMs) -> bool:
        return self._is_acting() and now_ms >= self._paused_until_ms

    def _act(self, now_ms: MonotonicMs) -> None:
        self._rounds.by(now_ms + AGAIN_MS)
        if not self._may_send(now_ms):
            self._was_acting = False
            self._windows = {level: each for level, each in self._windows.items() if each.awaited}
            return
        if not self._was_acting:
            self._schedule.copies.begin()
            self._was_acting = True
        if now_ms >= self._confirmed_until_ms:
            self._confirm()
            return
        for level in self._schedule.levels:
            window = self._windows.get(level)
            if window is None:
                window = self._open(level, now_ms)
            if window is not None:
                self._send_all(window, now_ms)

    # Whether to act.

    def _confirm(self) -> None:
        """Ask whether the master is gone still, and no slave has a lower id."""
        if not self._is_asking:
            self._is_asking = True
            self._ask(Question(self._name_server(), cluster_info(), self._confirmed, ANSWER_MS_MAX))

    def _confirmed(self, info: ClusterInfo | LibraError) -> None:
        self._is_asking = False
        if isinstance(info, LibraError):
            return
        broker = info.broker_addr_table.get(self._name)
        now_ms = self._clock.monotonic_ms()
        if broker is not None and min(broker.broker_addrs, default=None) == self._id:
            self._confirmed_until_ms = now_ms + CONFIRMED_MS
            self._rounds.by(now_ms)

    # What is sent.

    def _open(self, level: int, now_ms: MonotonicMs) -> "_Window | None":
        """Read the next due messages of a level."""
        due = self._schedule.due(level, now_ms)
        if due is None:
            self._rounds.by(now_ms + SOON_MS)
            return None
        if due.head_due_ms is not None:
            self._rounds.by(max(due.head_due_ms, now_ms + SOON_MS))
        if not due.messages:
            self._advance(level, due.next_offset)  # All of them were delivered by the master.
            return None
        window = self._windows[level] = _Window(level, due.messages, due.next_offset)
        return window

    def _send_all(self, window: "_Window", now_ms: MonotonicMs) -> None:
        """Send what is neither sent nor under way."""
        for place, message in enumerate(window.messages):
            if message is None or place in window.awaited or now_ms < window.again_ms:
                continue
            topic = message.properties.get(p.REAL_TOPIC, names.SCHEDULE_TOPIC)
            queues = self._queues(topic, now_ms)
            if queues:
                self._turn += 1
                address, queue_id = queues[self._turn % len(queues)]
                window.awaited.add(place)
                call = send_message(self._header(message, topic, queue_id), message.body)
                self._ask(Question(address, call, partial(self._sent, window, place), ANSWER_MS_MAX))

    def _sent(self, window: "_Window", place: int, answer: SendReply | LibraError) -> None:
        now_ms = self._clock.monotonic_ms()
        window.awaited.discard(place)
        if isinstance(answer, LibraError):
            log.warning(
                "a due message was not accepted elsewhere; it is sent again",
                level=window.level,
                reason=str(answer),
            )
            window.again_ms = now_ms + AGAIN_MS
        else:
            window.messages[place] = None
            self._advance(window.level, window.next_offset)
        if window.is_done:
            self._windows.pop(window.level, None)
            self._rounds.by(now_ms)

    def _advance(self, level: int, offset: int) -> None:
        if offset > self._schedule.offsets.get(level, 0):
            self._schedule.reached(level, offset)
            self._reached()

    def _header(self, message: MessageExt, topic: str, queue_id: int) -> SendMessageHeaderV2:
        properties = {name: value for name, value in message.properties.items() if name not in _DROPPED}
        return SendMessageHeaderV2(
            producer_group=f"InnerProducerGroup_{self._name}_{self._id}",
            topic=topic,
            default_topic=names.AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=message.sys_flag & ~(TRANSACTION_MASK | BORN_HOST_V6 | STORE_HOST_V6),
            born_timestamp=message.born_timestamp_ms,
            flag=message.flag,
            properties=p.properties_to_text(properties),
            reconsume_times=message.reconsume_times,
            unit_mode=False,
            batch=False,
            max_reconsume_times=p.whole_number(properties.get(p.MAX_RECONSUME_TIMES, ""), digits_max=9),
        )

    # Where to.

    def _queues(self, topic: str, now_ms: MonotonicMs) -> list[tuple[str, int]]:
        """Return the queues of a topic at other masters, once they are known."""
        asked_ms, queues = self._routes.get(topic, (None, []))
        is_new = asked_ms is None or now_ms - asked_ms >= (ROUTE_MS if queues else AGAIN_MS)
        if is_new and topic not in self._asked_routes:
            self._asked_routes.add(topic)
            routed = partial(self._routed, topic)
            self._ask(Question(self._name_server(), topic_route(topic), routed, ANSWER_MS_MAX))
        return queues

    def _routed(self, topic: str, route: TopicRouteData | LibraError) -> None:
        self._asked_routes.discard(topic)
        now_ms = self._clock.monotonic_ms()
        queues = [] if isinstance(route, LibraError) else self._others(route)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = now_ms, queues
        if queues:
            self._reported.discard(topic)
            self._rounds.by(now_ms)
        elif topic not in self._reported and len(self._reported) < ROUTES_MAX:
            self._reported.add(topic)
            log.warning("due messages wait for the master: no other one has their topic", topic=topic)

    def _others(self, route: TopicRouteData) -> list[tuple[str, int]]:
        """Return address and number of the queues at other masters that may be written."""
        masters = {each.broker_name: each.broker_addrs.get(MASTER_ID) for each in route.broker_datas}
        masters.pop(self._name, None)
        return [
            (address, queue_id)
            for each in route.queue_datas
            if each.perm & PERM_WRITE and (address := masters.get(each.broker_name)) is not None
            for queue_id in range(each.write_queue_nums)
        ]


class _Window:
    """Due messages of one level; one that was accepted is None. awaited: the places of those under way."""

    def __init__(self, level: int, messages: list[MessageExt], end_offset: int) -> None:
        self.level = level
        self.messages: list[MessageExt | None] = list(messages)
        self.awaited: set[int] = set()
        self.again_ms = MonotonicMs(0)
        self._end_offset = end_offset

    @property
    def next_offset(self) -> int:
        """Return the offset of the first message that is not accepted."""
        return next((each.queue_offset for each in self.messages if each is not None), self._end_offset)

    @property
    def is_done(self) -> bool:
        """Return whether everything was accepted."""
        return not any(each is not None for each in self.messages)
