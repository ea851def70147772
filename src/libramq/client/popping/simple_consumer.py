"""The simple consumer: a program receives messages and acknowledges them one by one, in any order; its limits
and timeouts.

    async with SimpleConsumer(group="shop") as consumer:
        consumer.subscribe("Orders")
        for message in await consumer.receive(32, invisible_ms=30_000):
            ...
            await consumer.ack(message)

No queue belongs to a member: any of them receives any message, and nothing is rebalanced. A round decides in
which order one `receive` pops at places (a topic at a broker), and how long each may hold the request:

    several places   first each in turn without waiting, then each in turn for a second, until the time is up
    one place        it holds the request for the whole time

Upstream: RocketMQ 5's SimpleConsumer.java, over POP.
"""

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, Unpack

from libramq.client.awaiting import all_of, answer_of
from libramq.client.beginning import Begun, GroupBeginning, places_of, take_steps
from libramq.client.identity import name_server_addresses
from libramq.client.options import (
    AsyncClient,
    SimpleConsumerOptions,
    check_function,
    check_names,
    whole_number,
)
from libramq.client.popping.popped import (
    NOT_POPPED,
    POP_MESSAGES_MAX,
    Place,
    ack_call,
    batch_acks,
    change_call,
    handle_of,
    is_wanted,
    note_change,
    pop_call,
)
from libramq.client.popping.popped_ahead import Brought, Pace, PopAnswer, PoppedAhead, Terms
from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.routes import look_up
from libramq.client.statistics import SimpleConsumerStatistics
from libramq.clock import MonotonicMs, SystemClock
from libramq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    InvalidState,
    LibraError,
    RemoteError,
    RequestCodeNotSupported,
    RequestTimeout,
    RouteNotFound,
)
from libramq.filter.subscription import CLUSTERING, CONSUME_ACTIVELY, Selector, Sql, selector
from libramq.formats.route import TopicRouteData
from libramq.formats.tables import PERM_READ
from libramq.message.message import MessageExt, set_deserializer
from libramq.message.names import validate_group, validate_topic
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData
from libramq.remoting.body.pop import BatchAckText
from libramq.rpc import pop_calls
from libramq.rpc.broker_calls import heartbeat, unregister_client
from libramq.rpc.call import Call
from libramq.transport.access import client_access
from libramq.transport.asyncio_remotes import AsyncioRemotes

T = TypeVar("T")

#: Ours: messages per request to LibraMQ's brokers while the program waits: they are decoded while the broker
#: reads for the next request. Pops ahead, for which no program waits, take one request.
WIDE_POP_MESSAGES: Final = 256
#: Ours: how many messages one call returns at most, by several concurrent requests.
MESSAGES_MAX: Final = 1024
#: DefaultMQPushConsumer.popInvisibleTime.
INVISIBLE_MS: Final = 60_000
#: How long a pop is held: BROKER_SUSPEND_MAX_TIME_MILLIS.
AWAIT_MS: Final = 15_000
#: timerMaxDelaySec: brokers hide messages for at most three days.
INVISIBLE_MS_MAX: Final = 3 * 24 * 3600 * 1000
#: DefaultMQPushConsumerImpl: how long an answer may take beyond the hold time of a pop.
TIMEOUT_MS: Final = 10_000
#: Ours: how long an answer may take beyond the hold time before other brokers are asked.
SILENCE_MS: Final = 1_000
#: ClientConfig.pollNameServerInterval.
ROUTE_REFRESH_MS: Final = 30_000
#: Ours: check points in one acknowledgement; a pop has one for every 32 messages of a queue.
ACKS_MAX: Final = 256
#: Ours: how long one of several places may hold a pop. Messages elsewhere wait at most this times the places.
SLICE_MS: Final = 1_000
#: Ours: the least hold time. Brokers answer held pops 50 ms early: with less they would answer at once, again
#: and again.
ENOUGH_MS: Final = 100


class NextPop(NamedTuple):
    """A pop to make at a place, and how long the broker may hold it."""

    place: Place
    poll_ms: int


class PopRound:
    """One round, beginning with the first place. Places that fail are left out."""

    def __init__(self, places: Sequence[Place], *, now_ms: MonotonicMs, await_ms: int) -> None:
        self._places = list(places)
        self._deadline_ms = now_ms + await_ms
        self._requested = 0
        self._at_once = len(places) if len(places) > 1 else 0
        self._error: LibraError | None = None

    def next(self, now_ms: MonotonicMs) -> NextPop | None:
        """Return the next pop; None when the time is up. Raises the last error if every place failed."""
        if not self._places:
            assert self._error is not None, "a round has places"
            raise self._error
        left_ms = max(0, self._deadline_ms - now_ms)
        at_once = self._requested < self._at_once
        if not at_once and left_ms < ENOUGH_MS and self._requested:
            return None
        place = self._places.pop(0)
        self._places.append(place)
        self._requested += 1
        if at_once:
            return NextPop(place, 0)
        return NextPop(place, left_ms if len(self._places) == 1 else min(left_ms, SLICE_MS))

    @property
    def is_last(self) -> bool:
        """Return whether only one place is left."""
        return len(self._places) == 1

    def failed(self, place: Place, error: LibraError) -> None:
        """Leave a place out."""
        self._places.remove(place)
        self._error = error


class SimpleConsumer(AsyncClient):
    """Receives messages; it belongs to the event loop it was started on.

    namesrv: "host:port", several separated by ";"; default: NAMESRV_ADDR, else 127.0.0.1:9876.
    from_end: a new group begins with messages that arrive after `start`, not with the oldest ones; in a topic
    subscribed later, with messages that arrive after the next `receive` has begun.
    prefetch: while the program handles the messages of a full `receive`, the next ones are already popped, if
    its previous calls followed each other within a hundredth of invisible_ms (1 s at most). It never gets
    messages that have been invisible for a tenth of invisible_ms (5 s at most): these, and those left at the
    end, are returned to the broker.
    deserializer: turns the body of a message into its `value`, when that is read.
    credentials: sign the requests, for clusters with authentication (ACL). tls: connections are encrypted.
    """

    def __init__(self, **options: Unpack[SimpleConsumerOptions]) -> None:
        check_names(options, SimpleConsumerOptions.__annotations__, "SimpleConsumer")
        if "group" not in options:
            raise ConfigError("a consumer needs a group")
        self.group = validate_group(options["group"])
        self._name_server_addresses = name_server_addresses(options.get("namesrv"))
        self._from_end = options.get("from_end", False)
        self._beginning = _beginning(self.group) if self._from_end else None
        self._begun = Begun()
        self._access = client_access(options.get("credentials"), options.get("tls"))
        self._clock = options.get("clock") or SystemClock()
        self._random = options.get("randomness")
        self._selectors: dict[str, Selector] = {}
        self._routes: dict[str, tuple[MonotonicMs, TopicRouteData]] = {}
        self._turn = 0
        self._prefetch = options.get("prefetch", True)
        self._deserializer = options.get("deserializer")
        if self._deserializer is not None:
            check_function("deserializer", self._deserializer)
        self._pace = Pace()
        self._ahead = PoppedAhead(self._give_back, self._clock.monotonic_ms)
        self._subscriptions = 0
        self._received = self._acknowledged = self._returned = 0
        #: Brokers that return at most `POP_MESSAGES_MAX`, by their last answer.
        self._narrow: set[str] = set()
        #: Brokers without batch acknowledgements: Apache's of 5.0.
        self._take_single_acks: set[str] = set()
        #: Pops whose answers are overdue.
        self._silent: dict[asyncio.Task[Brought], Place] = {}
        self._remotes: AsyncioRemotes | None = None

    async def start(self) -> None:
        """Start; without from_end connections are made when they are needed."""
        if self._remotes is not None:
            raise InvalidState("this consumer runs already")
        await look_up(self._name_server_addresses)
        self._remotes = AsyncioRemotes(self._clock.monotonic_ms, access=self._access)
        randomness = self._random or random.Random()  # Not earlier: forked children would draw alike.
        self._name_servers = NameServers(
            self._remotes, self._name_server_addresses, randomness, self._clock.monotonic_ms
        )
        if self._beginning is not None:
            try:
                await self._begin(self._beginning)
            except BaseException:
                await self.stop()
                raise

    async def _begin(self, beginning: GroupBeginning) -> None:
        """Begin the topics subscribed since the last call."""
        topics = self._selectors.keys() - self._begun.since_ms.keys()
        if not topics:
            return
        routes: dict[str, TopicRouteData] = {}
        for topic in topics:
            with contextlib.suppress(RouteNotFound):
                routes[topic] = await self._route(topic)
        steps = beginning.begin(topics, places_of(routes), int(self._clock.wall_ms()))
        begun: Begun = await answer_of(partial(take_steps, steps, self._running()))
        self._begun = self._begun.joined(begun)

    async def _begin_at(self, beginning: GroupBeginning, topic: str, broker_name: str) -> None:
        """Begin a topic at a broker that was away when it was begun, or is new."""
        since_ms = self._begun.since_ms.get(topic)
        if not since_ms or (topic, broker_name) in self._begun.places:
            return
        with contextlib.suppress(RequestCodeNotSupported):
            await self._ask(topic, broker_name, beginning.begin_at(topic, since_ms))
        self._begun = self._begun.joined(Begun(places={(topic, broker_name)}))

    async def stop(self) -> None:
        """Close all connections. Unacknowledged messages become visible again after their time."""
        if self._remotes is not None and not self._remotes.is_parents:
            self._remotes.require_loop("consumer")
        try:
            if self._remotes is not None and not self._remotes.is_parents:
                await self._ahead.aclose()
        finally:
            remotes, self._remotes = self._remotes, None
            if remotes is not None:
                await remotes.aclose()

    def subscribe(self, topic: str, expression: str | Sql = "*") -> None:
        """Set a topic's subscription: "*" for all messages, "tagA || tagB", or Sql("a > 3")."""
        self._selectors[validate_topic(topic)] = selector(expression)
        self._subscriptions += 1

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving a topic's messages."""
        if self._selectors.pop(topic, None) is None:
            raise ConfigError(f"this consumer has no subscription of {topic}")
        self._subscriptions += 1

    async def receive(
        self,
        max_messages: int = POP_MESSAGES_MAX,
        *,
        invisible_ms: int = INVISIBLE_MS,
        await_ms: int = AWAIT_MS,
    ) -> list[MessageExt]:
        """Return up to max_messages (1,024 at most); none if none arrive within await_ms.

        More than 256 (32 from Apache's brokers) take several concurrent requests, unless LibraMQ's brokers
        have popped them ahead. The messages are invisible to the group for invisible_ms, and received again
        afterwards unless they were acknowledged; so are those already popped when the call was cancelled.
        """
        whole_number("max_messages", max_messages, 1, MESSAGES_MAX)
        whole_number("invisible_ms", invisible_ms, 1, INVISIBLE_MS_MAX)
        whole_number("await_ms", await_ms, 0)
        self._running()
        now_ms, terms = self._clock.monotonic_ms, Terms(invisible_ms, self._subscriptions)
        self._pace.called(invisible_ms, now_ms())
        try:
            ahead = await self._ahead.take(max_messages, terms)
            brought = ahead or await self._round(max_messages, invisible_ms, await_ms)
        except BaseException:
            self._pace.failed()
            raise
        is_quick = self._pace.returned(brought.count, max_messages, now_ms())
        if is_quick and self._prefetch and not self._ahead.has_any:
            await self._ahead.start(self._round(max_messages, invisible_ms, 0, is_ahead=True), terms)
        if not await self._keep_wanted(brought) and ahead is not None:
            brought = await self._round(max_messages, invisible_ms, await_ms)
        if self._deserializer is not None:
            set_deserializer(brought.messages, self._deserializer)
        self._received += len(brought.messages)
        return brought.messages

    async def _round(
        self, max_messages: int, invisible_ms: int, await_ms: int, *, is_ahead: bool = False
    ) -> Brought:
        """Pop at one place after another until one has messages, or none arrive within await_ms.

        is_ahead: the messages are decoded, and filtered by tags, later.
        """
        now_ms = self._clock.monotonic_ms
        places = await self._places()
        pops = PopRound(places, now_ms=now_ms(), await_ms=await_ms)
        while (ask := pops.next(now_ms())) is not None:
            try:
                pop = self._pop(ask, max_messages, invisible_ms, is_ahead=is_ahead)
                brought = await (pop if pops.is_last else self._soon(pop, ask))
                if brought.count and (is_ahead or await self._keep_wanted(brought)):
                    return brought
            except RemoteError as error:
                self._routes.pop(ask.place.topic, None)
                pops.failed(ask.place, error)
        return Brought("", ())

    async def _soon(self, pop: Coroutine[Any, Any, Brought], ask: NextPop) -> Brought:
        """Return the result of a pop; RequestTimeout if its broker is silent: others may have messages.

        A silent broker is not asked again before it has answered, unless all are silent; the messages of its
        late answer are returned to it.
        """
        task = asyncio.ensure_future(pop)
        try:
            done, _ = await asyncio.wait([task], timeout=(ask.poll_ms + SILENCE_MS) / 1000)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        self._silent[task] = ask.place
        task.add_done_callback(self._silent.pop)
        self._ahead.return_all(task)
        raise RequestTimeout(f"broker {ask.place.broker_name} has not answered yet; receive again")

    async def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Acknowledge one message, or several with few requests.

        Raises BrokerError for a single message that is visible again. Among several, such messages raise no
        error, and are received again.
        """
        if isinstance(messages, MessageExt):
            broker_name = handle_of(messages).broker_name
            await self._ask(messages.topic, broker_name, ack_call(self.group, messages))
            self._acknowledged += 1
            return
        messages = list(messages)
        acks = batch_acks(self.group, messages)
        await all_of([self._ack_many(name, of_broker, messages) for name, of_broker in acks.items()])
        self._acknowledged += len(messages)

    async def _ack_many(
        self, broker_name: str, acks: Sequence[BatchAckText], messages: Sequence[MessageExt]
    ) -> None:
        """Acknowledge messages at one broker, with one request each if it takes no batches."""
        if broker_name not in self._take_single_acks:
            parts = (acks[at : at + ACKS_MAX] for at in range(0, len(acks), ACKS_MAX))
            calls = ((part[0].topic, pop_calls.batch_ack(broker_name, part)) for part in parts)
            try:
                await all_of([self._ask(topic, broker_name, call) for topic, call in calls])
                return
            except RequestCodeNotSupported:
                self._take_single_acks.add(broker_name)
        requests = [
            self._ask(each.topic, broker_name, ack_call(self.group, each))
            for each in messages
            if handle_of(each).broker_name == broker_name
        ]
        ended = await asyncio.gather(*requests, return_exceptions=True)
        for error in ended:
            is_visible = isinstance(error, BrokerError) and error.response_code in NOT_POPPED
            if error is not None and not is_visible:  # Those that are visible again are received again.
                raise error

    async def change_invisible_time(self, message: MessageExt, invisible_ms: int) -> None:
        """Keep a message invisible for this long from now on; later calls need this message, not a copy.

        Raises BrokerError if it is visible again already.
        """
        whole_number("invisible_ms", invisible_ms, 0, INVISIBLE_MS_MAX)
        broker_name = handle_of(message).broker_name
        call = change_call(self.group, message, invisible_ms)
        note_change(message, await self._ask(message.topic, broker_name, call))

    async def nack(self, message: MessageExt, *, delay_ms: int = 0) -> None:
        """Return a message to the broker, to be received again at once or after delay_ms."""
        await self.change_invisible_time(message, delay_ms)
        self._returned += 1

    async def statistics(self) -> SimpleConsumerStatistics:
        """Return the counts since the consumer was created."""
        return SimpleConsumerStatistics(
            received=self._received, acknowledged=self._acknowledged, returned=self._returned
        )

    async def _give_back(self, message: MessageExt) -> None:
        """Return a message that the program has not seen; LibraMQ's brokers count no attempt."""
        call = change_call(self.group, message, 0, is_unseen=True)
        await self._ask(message.topic, handle_of(message).broker_name, call)

    async def _pop(self, ask: NextPop, max_messages: int, invisible_ms: int, *, is_ahead: bool) -> Brought:
        """Pop at one place, with as many requests as needed."""
        topic = ask.place.topic
        selected = self._selectors.get(topic)
        if selected is None:  # Unsubscribed meanwhile.
            return Brought(topic, ())
        if self._beginning is not None:
            await self._begin_at(self._beginning, *ask.place)
        is_narrow = ask.place.broker_name in self._narrow
        wide_max = MESSAGES_MAX if is_ahead else WIDE_POP_MESSAGES  # Pops ahead are decoded later.
        at_once_max = POP_MESSAGES_MAX if is_narrow else wide_max
        if max_messages > at_once_max:
            answers = await self._pop_many(ask, selected, max_messages, at_once_max, invisible_ms)
            if any(answer.count for answer in answers) or not ask.poll_ms:
                return Brought(topic, answers)
        count_max = min(max_messages, at_once_max)
        return Brought(topic, [await self._pop_once(ask, selected, count_max, invisible_ms)])

    async def _pop_many(
        self, ask: NextPop, selected: Selector, max_messages: int, at_once_max: int, invisible_ms: int
    ) -> list[PopAnswer]:
        """Pop more than one request may return, with several concurrent requests.

        None of these is held: Apache's broker would hold one that finds a queue locked by another, and the
        messages of the others, whose invisible time is running, would wait for it.
        """
        at_once = ask._replace(poll_ms=0)
        counts = [min(left, at_once_max) for left in range(max_messages, 0, -at_once_max)]
        outstanding = len(counts)

        async def pop_some(count: int) -> PopAnswer:
            nonlocal outstanding
            try:
                answer = await self._pop_once(at_once, selected, count, invisible_ms)
            finally:
                outstanding -= 1
            if outstanding:
                _ = answer.messages  # There is time to decode them.
            return answer

        return _of_all(await asyncio.gather(*map(pop_some, counts), return_exceptions=True))

    async def _keep_wanted(self, brought: Brought) -> bool:
        """Leave out messages whose tags are not subscribed; return whether any are left."""
        messages, selected = brought.messages, self._selectors.get(brought.topic)
        if selected is None:
            return bool(messages)
        others = [message for message in messages if not is_wanted(message, selected)]
        if others:
            await self.ack(others)  # No other member would take them.
            self._acknowledged -= len(others)
            messages[:] = [message for message in messages if is_wanted(message, selected)]
        return bool(messages)

    async def _pop_once(
        self, ask: NextPop, selected: Selector, count_max: int, invisible_ms: int
    ) -> PopAnswer:
        topic, broker_name = ask.place
        call = pop_call(
            self.group,
            ask.place,
            selected,
            invisible_ms=invisible_ms,
            hold_ms=ask.poll_ms,
            from_end=self._from_end,
            wide_max=count_max,
        )
        reply = await self._ask(topic, broker_name, call, timeout_ms=ask.poll_ms + TIMEOUT_MS)
        if reply.counts is None:
            self._narrow.add(broker_name)
        else:
            self._narrow.discard(broker_name)
        return PopAnswer(reply, ask.place)

    async def _places(self) -> list[Place]:
        if not self._selectors:
            raise InvalidState("this consumer has no subscription; call subscribe(topic) first")
        if self._beginning is not None:
            await self._begin(self._beginning)
        places = []
        for topic in list(self._selectors):
            route = await self._route(topic)
            readable = sorted({each.broker_name for each in route.queue_datas if each.perm & PERM_READ})
            places += [Place(topic, broker_name) for broker_name in readable]
        if not places:
            raise RouteNotFound(f"no broker has readable queues of {', '.join(self._selectors)}")
        silent = self._silent.values()
        places = [place for place in places if place not in silent] or places
        self._turn += 1
        first = self._turn % len(places)
        return places[first:] + places[:first]

    async def _route(self, topic: str) -> TopicRouteData:
        self._running()
        cached = self._routes.get(topic)
        now_ms = self._clock.monotonic_ms()
        if cached is not None and now_ms - cached[0] < ROUTE_REFRESH_MS:
            return cached[1]
        route: TopicRouteData = await answer_of(partial(self._name_servers.route, topic))
        self._routes[topic] = (now_ms, route)
        return route

    async def _ask(self, topic: str, broker_name: str, call: Call[T], *, timeout_ms: int = TIMEOUT_MS) -> T:
        route = await self._route(topic)
        remotes = self._running()
        masters = {each.broker_name: each.master_address for each in route.broker_datas}
        address = masters.get(broker_name)
        if address is None:
            self._routes.pop(topic, None)
            raise ConnectFailed(f"broker {broker_name} is not known, or has no master now; start it")
        send = partial(remotes.send, address, call.command(), timeout_ms=timeout_ms)
        try:
            reply = await answer_of(send)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            self._routes.pop(topic, None)  # Another broker may act for it by now.
            raise
        return call.result(reply, where=f"broker {broker_name} at {address}")

    def _running(self) -> AsyncioRemotes:
        if self._remotes is None:
            raise InvalidState("this consumer does not run; use `async with` or await start()")
        self._remotes.require_loop("consumer")
        return self._remotes


def _beginning(group: str) -> GroupBeginning:
    """Return the rule that begins topics at their ends."""
    client_id = f"{group}@begin"
    consumer = ConsumerData(group_name=group, consume_type=CONSUME_ACTIVELY, message_model=CLUSTERING)
    beat = heartbeat(HeartbeatData(client_id=client_id, consumer_data_set=[consumer]))
    leave = unregister_client(client_id, producer_group=None, consumer_group=group)
    return GroupBeginning(group, None, beat, leave)


def _of_all(outcomes: Sequence[PopAnswer | BaseException]) -> list[PopAnswer]:
    """Return the answers of several pops; raises the error of one if none has messages."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, PopAnswer)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors and not any(answer.count for answer in answers):
        raise errors[0]
    return answers
