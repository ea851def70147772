"""The beginning: the offsets at which a group that is new to a topic begins (the ends, or a time), committed
before its first member starts, at LibraMQ's brokers and at Apache's.

    known at a broker ─► the group goes on; queues without an offset are read from the time at which it began
    known at none     ─► every broker that answers commits the ends of its queues, or the messages of a time

LibraMQ's brokers do it themselves (GROUP_BEGIN). At Apache's the member does it queue by queue: it queries
the end before it looks for an offset a second time, so it never skips messages that arrived after another
member had started.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from libramq.client.routing.publish_info import subscribe_queues
from libramq.errors import LibraError, RequestCodeNotSupported, RequestTimeout, VersionNotSupported
from libramq.formats.route import TopicRouteData
from libramq.message.queue import MessageQueue
from libramq.remoting.command import Command
from libramq.rpc import broker_calls as calls
from libramq.rpc.call import Call
from libramq.rpc.group_calls import begin_topic
from libramq.transport.remotes import Remotes

T = TypeVar("T")

#: How much earlier than its group a queue begins if its broker was away then: clocks differ.
LEEWAY_MS: Final = 60_000
#: Ours: attempts at an Apache broker that has answered before; Java's pauses can be long.
ATTEMPTS: Final = 3


class Question(NamedTuple):
    """A request to a broker."""

    address: str
    call: Call[Any]


class QueuesAtBroker(NamedTuple):
    """A topic's queues at a broker."""

    topic: str
    broker_name: str
    address: str
    queues: tuple[MessageQueue, ...]


class Begun(NamedTuple):
    """The outcome. since_ms: by topic, when reading begins in queues without an offset; 0: Apache's rule.

    places: topics and names of brokers where the group has begun.
    """

    since_ms: Mapping[str, int] = {}
    places: Set[tuple[str, str]] = frozenset()

    def joined(self, other: "Begun") -> "Begun":
        """Return this outcome combined with a later one."""
        return Begun({**self.since_ms, **other.since_ms}, self.places | other.places)


#: Yields the requests to make at once, by subject, and is sent their results or errors.
Asking = Generator[Mapping[Any, Question], Mapping[Any, Any], T]
Steps = Asking[Begun]


def places_of(routes: Mapping[str, TopicRouteData | None]) -> list[QueuesAtBroker]:
    """Return the places of topics at brokers that have masters."""
    found = []
    for topic, route in routes.items():
        masters = {each.broker_name: each.master_address for each in route.broker_datas} if route else {}
        queues = subscribe_queues(topic, route) if route else ()
        for broker_name, address in masters.items():
            of_broker = tuple(queue for queue in queues if queue.broker_name == broker_name)
            if address is not None and of_broker:
                found.append(QueuesAtBroker(topic, broker_name, address, of_broker))
    return found


def take_steps(
    steps: Steps, remotes: Remotes, begun: Callable[[Begun], None], answers: Mapping[Any, Any] | None = None
) -> None:
    """Make the requests of steps; begun: called with their outcome. answers: to the previous requests."""
    try:
        questions = next(steps) if answers is None else steps.send(answers)
        while not questions:
            questions = steps.send({})
    except StopIteration as ended:
        begun(ended.value)
        return
    outcomes: dict[Any, Any] = dict.fromkeys(questions)
    waiting = len(questions)

    def answered(about: Any, reply: Command | LibraError) -> None:
        nonlocal waiting
        address, call = questions[about]
        outcomes[about] = call.outcome(reply, where=f"broker {address}")
        waiting -= 1
        if not waiting:
            take_steps(steps, remotes, begun, outcomes)

    for about, (address, call) in questions.items():
        remotes.send(address, call.command(), partial(answered, about))


class GroupBeginning:
    """Begins topics for a group: at the ends of queues, or at the messages of a time.

    heartbeat: creates the group at Apache's brokers. leave: withdraws it, for a client that is not a member.
    """

    def __init__(
        self, group: str, timestamp_ms: int | None, heartbeat: Call[Any], leave: Call[Any] | None = None
    ) -> None:
        self._group = group
        self._timestamp_ms = timestamp_ms
        self._heartbeat = heartbeat
        self._leave = leave

    def begin(self, topics: Iterable[str], places: Sequence[QueuesAtBroker], wall_ms: int) -> Steps:
        """Begin topics to which the group is new."""
        known = yield self._known(places)
        since_ms: dict[str, int] = {}
        begun = _note(since_ms, known)
        unknown = [place for place, answer in known.items() if answer is None]
        unserved = RequestCodeNotSupported | VersionNotSupported
        apaches = [place for place, answer in known.items() if isinstance(answer, unserved)]
        queues = {queue: place.address for place in apaches for queue in place.queues}
        offsets = yield self._committed(queues)
        for queue, offset in offsets.items():
            if isinstance(offset, int):
                since_ms.setdefault(queue.topic, 0)
        yield from self._commit(
            {queue: address for queue, address in queues.items() if queue.topic not in since_ms}
        )
        # Another member, which has begun elsewhere, may be about to begin there.
        answers = yield self._known([place for place in unknown if since_ms.get(place.topic)])
        begun |= _note(since_ms, answers)
        answers = yield {
            place: Question(place.address, self.begin_at(place.topic, since_ms.get(place.topic)))
            for place in unknown
            if since_ms.get(place.topic) != 0 and place[:2] not in begun
        }
        begun |= _note(since_ms, answers) | {place[:2] for place in apaches}
        return Begun(self._since(topics, wall_ms) | since_ms, begun)

    def begin_locally(
        self,
        topics: Iterable[str],
        places: Sequence[QueuesAtBroker],
        wall_ms: int,
        *,
        read: Callable[[MessageQueue], int | None],
        write: Callable[[Sequence[tuple[MessageQueue, int]]], None],
    ) -> Steps:
        """Begin the queues for which a member's local store has no offset."""
        ends = yield {
            queue: Question(place.address, self._end(queue))
            for place in places
            for queue in place.queues
            if read(queue) is None
        }
        if found := [(queue, end) for queue, end in ends.items() if isinstance(end, int)]:
            write(found)
        return Begun(self._since(topics, wall_ms))

    def begin_at(self, topic: str, since_ms: int | None = None) -> Call[int | None]:
        """Return the call that begins a topic at a broker. since_ms: when the group began elsewhere."""
        return begin_topic(
            self._group, topic, begins=True, timestamp_ms=self._timestamp_ms if since_ms is None else since_ms
        )

    def _commit(self, queues: Mapping[MessageQueue, str]) -> Asking[None]:
        """Begin queues at Apache's brokers. queues: with the brokers' addresses."""
        ends = yield from _insist(
            {queue: Question(address, self._end(queue)) for queue, address in queues.items()}
        )
        addresses = dict.fromkeys(queues.values())
        yield from _insist({address: Question(address, self._heartbeat) for address in addresses})
        offsets = yield from _insist(self._committed(queues))
        commits = {
            queue: Question(queues[queue], calls.update_consumer_offset(self._group, queue, end))
            for queue, end in ends.items()
            if isinstance(end, int) and offsets[queue] is None
        }
        # Apache's broker loses all but one of a topic's first commits that arrive together.
        first = {(queues[queue], queue.topic): queue for queue in commits}
        yield from _insist({queue: commits.pop(queue) for queue in first.values()})
        yield from _insist(commits)
        if self._leave is not None:
            yield {address: Question(address, self._leave) for address in addresses}

    def _known(self, places: Iterable[QueuesAtBroker]) -> dict[QueuesAtBroker, Question]:
        return {place: Question(place.address, begin_topic(self._group, place.topic)) for place in places}

    def _committed(self, queues: Mapping[MessageQueue, str]) -> dict[MessageQueue, Question]:
        return {
            queue: Question(address, calls.query_consumer_offset(self._group, queue))
            for queue, address in queues.items()
        }

    def _end(self, queue: MessageQueue) -> Call[int]:
        if self._timestamp_ms is None:
            return calls.max_offset(queue)
        return calls.search_offset(queue, self._timestamp_ms)

    def _since(self, topics: Iterable[str], wall_ms: int) -> dict[str, int]:
        since_ms = wall_ms - LEEWAY_MS if self._timestamp_ms is None else self._timestamp_ms
        return dict.fromkeys(topics, max(1, since_ms))


def _insist(questions: Mapping[Any, Question]) -> Asking[Mapping[Any, Any]]:
    """Make requests, and repeat those that time out."""
    answers: dict[Any, Any] = {}
    for _ in range(ATTEMPTS):
        answers |= yield {
            about: question
            for about, question in questions.items()
            if isinstance(answers.get(about, RequestTimeout("")), RequestTimeout)
        }
    return answers


def _note(since_ms: dict[str, int], answers: Mapping[QueuesAtBroker, Any]) -> set[tuple[str, str]]:
    """Note the earliest times that brokers know; return the places that know one, or 0."""
    known = {place: answer for place, answer in answers.items() if isinstance(answer, int)}
    for place, answer in known.items():
        since_ms[place.topic] = min(filter(None, (since_ms.get(place.topic), answer)), default=0)
    return {place[:2] for place in known}
