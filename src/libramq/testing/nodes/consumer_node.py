"""The simulated consumer: the real network side of a push consumer, in virtual time.

Only its environment is simulated: handlers that take time, and a supervisor that restarts it when no name
server answers. This replaces `client.consumer_run`, which has threads and loops.
"""

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.local_offset_store import DIRECTORY, LocalOffsetStore
from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.consuming.subscription import with_retry_topic
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import Fenced, LibraError, RemoteError
from libramq.fencing import Claim, OpenedQueue
from libramq.filter.subscription import Selector
from libramq.formats.document import decode_body, encode_body
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import QueryAssignmentBody, QueryAssignmentReply
from libramq.remoting.body.coordination import GroupAssignment, epochs_of
from libramq.rpc import broker_calls as calls
from libramq.rpc.broker_calls import COORDINATED
from libramq.rpc.call import Call
from libramq.rpc.group_calls import Joined
from libramq.testing.happening import Happening
from libramq.testing.history import Commit
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.network import SimulatedDialer
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.testing.nodes.broker_node import is_slave, master_name
from libramq.testing.world import World


@dataclass(frozen=True, slots=True)
class Handling:
    """The behaviour of a member's handlers. slow_chance: the chance that a handler takes slow_ms."""

    duration_ms_max: int = 5
    failure_chance: float = 0.0
    concurrency: int = 20
    slow_chance: float = 0.0
    slow_ms: int = 0


class SimulatedHandlers:
    """Runs handlers in the order of deliveries, a limited number at a time."""

    def __init__(
        self,
        process: Process,
        handling: Handling,
        randomness: random.Random,
        *,
        began: Callable[[Delivery], None],
        ended: Callable[[Delivery, HandlerOutcome], None],
    ) -> None:
        self._process = process
        self._handling = handling
        self._random = randomness
        self._began = began
        self._ended = ended
        self._waiting: deque[Delivery] = deque()
        self._running = 0
        self._abandoned: set[Delivery] = set()

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Queue deliveries for handlers."""
        self._waiting.extend(deliveries)
        self._process.after(0, self._start)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Run other handlers in place of those that do not return."""
        self._abandoned.update(deliveries)
        self._running -= len(deliveries)
        self._process.after(0, self._start)

    def _start(self) -> None:
        while self._waiting and self._running < self._handling.concurrency:
            delivery = self._waiting.popleft()
            if not delivery.begin():
                self._ended(delivery, HandlerOutcome.SKIPPED)
                continue
            self._running += 1
            self._began(delivery)
            duration_ms = self._random.randint(0, self._handling.duration_ms_max)
            if self._handling.slow_chance and self._random.random() < self._handling.slow_chance:
                duration_ms = self._handling.slow_ms
            self._process.after(duration_ms, partial(self._end, delivery))

    def _end(self, delivery: Delivery) -> None:
        if delivery in self._abandoned:
            self._abandoned.discard(delivery)
        else:
            self._running -= 1
        failed = self._random.random() < self._handling.failure_chance
        self._ended(delivery, HandlerOutcome.LATER if failed else HandlerOutcome.SUCCESS)
        self._start()


#: AllocateMessageQueueAveragely.getName, the default of DefaultMQPushConsumer.
STRATEGY: Final = "AVG"


#: Replaces a response without queues, which means that the broker does not know the topic.
NO_QUEUES: Final = RemoteError("the broker does not know the topic")


class ServerAssignedQueues:
    """The assignment of one member, by topic.

    Instead of fetching the member list and allocating, the member queries its queues of each topic
    (QUERY_ASSIGNMENT). Upstream: RebalanceImpl.getRebalanceResultFromBroker.
    """

    def __init__(self, group: str, client_id: str, ask: Callable[[fx.Ask[Any]], None]) -> None:
        self._group = group
        self._client_id = client_id
        self._ask = ask
        self._assigned: dict[str, set[MessageQueue]] = {}

    def strategy(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return our assigned queues; a `balance.TopicRule`."""
        return [queue for queue in queues if queue in self._assigned.get(queue.topic, ())]

    def fetch(self, ask_list: fx.Ask[list[str]], topics: Collection[str]) -> None:
        """Query the queues of each topic instead of the members.

        A topic whose query fails keeps its assignment until the next round, which comes soon.
        """
        waiting, failures = set(topics), []

        def answered(topic: str, outcome: QueryAssignmentReply | LibraError, now_ms: MonotonicMs) -> None:
            waiting.discard(topic)
            assigned = None if isinstance(outcome, LibraError) else outcome.message_queue_assignments
            if assigned is not None:
                self._assigned[topic] = {each.message_queue.queue for each in assigned}
            else:
                failures.append(outcome if isinstance(outcome, LibraError) else NO_QUEUES)
            if waiting:
                return
            if len(failures) < len(topics):  # As one of several members: others may have had the queues.
                ask_list.done([self._client_id, "others"], now_ms)
            if failures:
                ask_list.done(failures[0], now_ms)

        for topic in topics:
            self._ask(fx.Ask(ask_list.address, self._call(topic), partial(answered, topic)))

    def _call(self, topic: str) -> Call[QueryAssignmentReply]:
        body = QueryAssignmentBody(
            topic=topic, consumer_group=self._group, client_id=self._client_id, strategy_name=STRATEGY
        )
        return Call(
            RequestCode.QUERY_ASSIGNMENT,
            lambda reply: decode_body(reply.body, QueryAssignmentReply),
            body=encode_body(body),
        )


_FENCED = {
    RequestCode.UPDATE_CONSUMER_OFFSET: Happening.COMMIT_FENCED,
    RequestCode.PULL_MESSAGE: Happening.PULL_FENCED,
}


_RENEWING = frozenset({RequestCode.GROUP_JOIN, RequestCode.GROUP_POLL})
_OF_A_QUEUE = frozenset(
    {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.OPEN_QUEUE,
        RequestCode.PULL_MESSAGE,
    }
)


#: Requests that a slave must refuse.
_CHANGING: Mapping[int, str] = {
    RequestCode.OPEN_QUEUE: "an opening",
    RequestCode.UPDATE_CONSUMER_OFFSET: "a commit",
}


class Witness:
    """Reports the observations of one member, from the wire, independently of the client's internals."""

    def __init__(self, world: World, member: str, group: str) -> None:
        self._world = world
        self._member = member
        self._group = group

    def refused(self, call: Call[Any], error: LibraError) -> None:
        """Note a request that was answered with an error."""
        happening = _FENCED.get(call.code) if isinstance(error, Fenced) else None
        if happening is not None:
            self._world.history.happened(happening, f"of {self._member}, {call.ext['topic']}")

    def answers_of(self, address: str, call: Call[Any]) -> Callable[[Any], None] | None:
        """Return the callback for the result of a call, if any."""
        history, group, requested_ms = self._world.history, self._group, self._world.time.now_ms
        if call.code in _RENEWING:
            return partial(self._renewed, requested_ms)
        if call.code not in _OF_A_QUEUE:
            return None
        name = self._world.network.name_at(address)
        queue = MessageQueue(call.ext["topic"], master_name(name), int(call.ext["queueId"]))
        epoch = call.ext.get("lbQueueEpoch")
        claim = Claim(self._member, int(epoch)) if epoch is not None else None
        if is_slave(name):
            if call.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                # An acting slave passes it on when its master is back, unless it restarts before that.
                history.commit_requested(group, queue, Commit(int(call.ext["commitOffset"]), requested_ms))
            return self._answer_of_slave(call.code, queue, claim)
        if call.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            commit = Commit(int(call.ext["commitOffset"]), requested_ms, claim)
            history.commit_requested(group, queue, commit)
            return lambda _: history.commit_acknowledged(group, queue, commit)
        if call.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return lambda offset: history.offset_read(group, queue, offset, requested_ms)
        if claim is None:
            return None

        def pulled(reply: Any) -> None:
            if reply.code == ResponseCode.SUCCESS:
                history.pulled(group, queue, claim, requested_ms)

        is_opening = call.code == RequestCode.OPEN_QUEUE
        return partial(self._opened, requested_ms, queue, claim) if is_opening else pulled

    def _renewed(self, requested_ms: MonotonicMs, answer: Joined | GroupAssignment) -> None:
        """Note a coordinator's response, and the queues it has opened."""
        self._world.history.session_renewed(self._member, requested_ms)
        assignment = answer.assignment if isinstance(answer, Joined) else answer
        epochs = epochs_of(assignment.queues)
        for queue, opened in (each.value() for each in assignment.opened):
            self._opened(requested_ms, queue, Claim(self._member, epochs[queue]), opened)
            self._world.history.happened(Happening.OPENED_WITH_GRANT, f"{self._member}, {queue.topic}")

    def _opened(
        self, requested_ms: MonotonicMs, queue: MessageQueue, claim: Claim, answer: OpenedQueue
    ) -> None:
        self._world.history.opened(self._group, queue, claim, requested_ms)
        self._world.history.offset_read(self._group, queue, answer.offset, requested_ms)

    def _answer_of_slave(
        self, code: int, queue: MessageQueue, claim: Claim | None
    ) -> Callable[[Any], None] | None:
        """Return the callback for a slave's response, if any."""
        history = self._world.history
        if code in _CHANGING:
            return lambda _: history.changed_at_slave(self._group, queue, _CHANGING[code], claim)

        def pulled(reply: Any) -> None:
            if reply.code == ResponseCode.SUCCESS:
                history.happened(Happening.READ_FROM_SLAVE, f"{self._member}, {queue.topic}")

        return pulled if code == RequestCode.PULL_MESSAGE and claim is not None else None


#: The pause before a consumer whose name servers did not answer is restarted, as by its program.
START_AGAIN_MS: Final = 500


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The properties of a simulated member.

    is_stock: it offers no coordination, like RocketMQ's own clients, and allocates for itself.
    asks: a stock member that instead asks the broker for its queues (Java's setClientRebalance(false)).
    """

    settings: ConsumerSettings
    subscriptions: Mapping[str, Selector]
    handling: Handling
    is_stock: bool = False
    asks: bool = False


class _MemberNetwork(ConsumerNetwork):
    """The network of a member, perhaps a stock one; a `Witness` sees its requests."""

    def __init__(self, plan: MemberPlan, witness: Witness, **parts: Any) -> None:
        self._plan = plan
        self._witness = witness
        settings = plan.settings
        assigned = ServerAssignedQueues(settings.group, settings.client_id, self.ask) if plan.asks else None
        if assigned is not None:
            settings = replace(settings, strategy=assigned.strategy)
        self._assigned = assigned
        super().__init__(settings, plan.subscriptions, failed=fail, **parts)

    def ask(self, ask: fx.Ask[Any]) -> None:
        call = ask.call
        if self._assigned is not None and call.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            readers = self.core.routes.readers_of_topic
            subscriptions = with_retry_topic(self._plan.settings, self._plan.subscriptions)
            topics = [each for each in subscriptions if ask.address in readers(each)]
            self._assigned.fetch(ask, topics)
            return
        watched = self._witness.answers_of(ask.address, call)
        if self._plan.is_stock and call.code == RequestCode.HEART_BEAT:
            call = _stock_heartbeat(call)

        def witnessed(outcome: Any, now_ms: MonotonicMs) -> None:
            if isinstance(outcome, LibraError):
                self._witness.refused(call, outcome)
            elif watched is not None:
                watched(outcome)
            ask.done(outcome, now_ms)

        super().ask(msgspec.structs.replace(ask, call=call, done=witnessed))


class SimulatedConsumer:
    """One member of a group for the life of its process; a `consumer_network.Run`.

    disk: the disk of its machine, if a broadcasting consumer ran there before.
    """

    def __init__(
        self,
        world: World,
        name: str,
        plan: MemberPlan,
        name_servers: Sequence[str],
        *,
        disk: MemoryDisk | None = None,
    ) -> None:
        settings = plan.settings
        self.name = name
        self.plan = plan
        self.group, self.client_id = settings.group, settings.client_id
        self.is_broadcasting, self.is_orderly = settings.broadcasting, settings.orderly
        self.retries_max, self.session_ms = settings.retries_max, settings.session_ms
        self.instance_id = settings.instance_id
        self.topics = tuple(plan.subscriptions)
        self.disk = disk or MemoryDisk(world.time, world.stream(f"disk of {name}"))
        self.process = Process(name, world.time, clock=world.clock(name))
        self.joined_ms = world.time.now_ms
        self.is_stopping = False
        self._world = world
        self._name_server_addresses = name_servers
        self._witness = Witness(world, name, settings.group)
        self._random = world.stream(f"name servers of {name}")
        self.process.start()
        self._handlers = SimulatedHandlers(
            self.process, plan.handling, world.stream(name), began=self._handling_began, ended=self._handled
        )
        self.network: ConsumerNetwork = self._new_network()
        self.process.after(0, self._start)

    @property
    def audience(self) -> str:
        """Return the name under which messages are shared: its group, or its own if it broadcasts."""
        return f"{self.group}/{self.client_id}" if self.is_broadcasting else self.group

    @property
    def is_alive(self) -> bool:
        """Return whether the member takes part in its group or is about to."""
        return self.process.is_alive and not self.is_stopping

    # Start and stop.

    def stop(self, timeout_ms: int = 2_000) -> None:
        """Leave gracefully."""
        self.is_stopping = True
        self.process.do(lambda: self.network.stop(timeout_ms, self._stopped))

    def kill(self) -> None:
        """Kill the process, as by SIGKILL."""
        if self.process.is_alive:
            self.process.kill()
            self.disk.process_died()
            self._world.network.died(self.process)
            self._world.history.note(self.name, "gone")

    def _start(self) -> None:
        if not self.is_stopping:
            self.network.start(self._started)

    def _started(self, failure: LibraError | None) -> None:
        if failure is not None:
            self.network = self._new_network()
            self.process.after(START_AGAIN_MS, self._start)

    def _stopped(self, _: None) -> None:
        self.process.after(0, self.kill)

    def _new_network(self) -> Any:
        world, settings = self._world, self.plan.settings
        directory = Path(f"/{DIRECTORY}")
        offsets = LocalOffsetStore(directory, self.client_id, self.group, self.disk)
        return _MemberNetwork(
            self.plan,
            self._witness,
            name_server_addresses=self._name_server_addresses,
            dialer=SimulatedDialer(world.network, self.process),
            timers=SimulatedTimers(self.process),
            clock=self.process.clock,
            randomness=self._random,
            run=self,
            stored_offsets=offsets if settings.broadcasting else None,
        )

    # Callbacks of the network.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Run handlers."""
        for delivery in deliveries:
            self._world.history.delivered(self, delivery)
        self._handlers.deliver(deliveries)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the slots of handlers that do not return."""
        self._handlers.give_up(deliveries)

    def notify(self, change: fx.Assigned | fx.Revoked | fx.Lost) -> None:
        """Note changes of the member's queues."""
        self._world.history.owners_changed(self.name, _CHANGES[type(change)], change.queues)

    def begin_trouble(self, trouble: fx.Trouble) -> None:
        """Ignore it: there is no user."""

    def end_trouble(self, recovered: fx.Recovered) -> None:
        """Ignore it: there is no user."""

    def _handling_began(self, delivery: Delivery) -> None:
        self._world.history.handling_began(self, delivery)

    def _handled(self, delivery: Delivery, outcome: HandlerOutcome) -> None:
        if outcome is not HandlerOutcome.SKIPPED:
            self._world.history.handled(self, delivery, outcome)
        self.network.handled([(delivery, outcome)])


_CHANGES: Final[Mapping[type[Any], str]] = {
    fx.Assigned: "assigned",
    fx.Revoked: "revoked",
    fx.Lost: "lost",
}


def fail(_: str, error: Exception) -> None:
    """End the simulation if an effect violates an invariant."""
    raise error


def _stock_heartbeat(call: Call[Any]) -> Call[Any]:
    """Return a heartbeat that does not offer coordination and ignores the broker's offer."""
    ext = {name: value for name, value in call.ext.items() if name != COORDINATED}
    return replace(call, ext=ext, parse=lambda reply: calls.HeartbeatReply(reply.version, coordinates=False))
