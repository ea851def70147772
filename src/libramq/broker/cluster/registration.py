"""The registration: what a broker reports to name servers, and how often; how long a new topic's send or
group's first heartbeat waits for that; heartbeats; and when a start may listen before name servers have
answered.

It registers at start, every 30 s and after each change of its topics, at every name server. It also sends a
heartbeat every second, so that a stalled broker is removed, and its groups get other coordinators, within
seconds. Each name server has its own pace: one that hangs delays no other.

    start ─► looking for brokers, at most a second ─► listening ─► registered

If it registered earlier, it would send members that look for their coordinator to the wrong broker.
Upstream: BrokerController, BrokerOuterAPI.registerBrokerAll, sendHeartbeat.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from libramq.broker.cluster.name_server_list import NameServerList
from libramq.broker.config import BrokerConfig
from libramq.catalog.topic_table import TopicTable
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError
from libramq.formats.tables import (
    PERM_INHERIT,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from libramq.groups.cluster_view import ClusterView
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.effect import Listen, Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Gated, Missing
from libramq.logs import get_logger
from libramq.message.names import MEMBERS_TOPIC_PREFIX
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.remoting.headers import BrokerHeader, BrokerHeartbeatHeader, RegisterBrokerHeader
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import Master, broker_heartbeat, register_broker, unregister_broker
from libramq.rpc.question import Question, signing

log = get_logger(__name__)

#: BrokerConfig.registerBrokerTimeoutMills.
REGISTER_TIMEOUT_MS: Final = 24_000
#: BrokerController.start clamps registerNameServerPeriod to these.
PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000
#: BrokerConfig.brokerHeartbeatInterval, brokerNotActiveTimeoutMillis: upstream's values if slaves act as
#: masters; otherwise upstream sends none, and a stalled broker stays registered for two minutes. Name servers
#: before 5.0 know neither.
HEARTBEAT_MS: Final = 1_000
HEARTBEAT_TIMEOUT_MS: Final = 10_000
#: Ours: a name server that was silent for that long may have forgotten this broker when it answers again. It
#: does so after HEARTBEAT_TIMEOUT_MS.
SILENT_MS: Final = HEARTBEAT_TIMEOUT_MS // 2
#: Ours: several topics created in one turn, or soon after one another, cause one registration. It begins at
#: once where a reply waits for it.
CHANGE_DELAY_MS: Final = 2
#: Ours: leaving must not take longer than a user waits; name servers notice the closed connection anyway.
UNREGISTER_TIMEOUT_MS: Final = 1_000
#: Ours: how long a start waits to see the other brokers.
LOOK_AROUND_MS_MAX: Final = 1_000
#: Ours: how long a start waits for silent name servers; they are informed when they answer.
FIRST_ROUND_MS_MAX: Final = 3_000
#: Ours: an unreachable name server is retried soon, so that the starting order does not matter.
RETRY_MS: Final = 1_000
#: Ours: the creator of a topic is answered then at the latest; clients wait 3 s and more.
ANNOUNCED_MS_MAX: Final = 2_000


def introduction(config: BrokerConfig, topics: Sequence[TopicConfig], version: DataVersion) -> Call[object]:
    """Return the registration: the broker's identity and topics. To be called in a thread."""
    table = {topic.topic_name: _permitted(topic, config) for topic in topics}
    if config.enable_slave_acting_master and not config.is_slave:
        name = MEMBERS_TOPIC_PREFIX + config.broker_name
        table[name] = TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=PERM_INHERIT)
    wrapper = TopicConfigSerializeWrapper(data_version=version, topic_config_table=table)
    header = RegisterBrokerHeader(
        broker_name=config.broker_name,
        broker_addr=config.address,
        cluster_name=config.cluster_name,
        broker_id=config.broker_id,
        ha_server_addr=f"{config.broker_ip}:{config.ha_listen_port or config.listen_port + 1}",
    )
    header.heartbeat_timeout_millis = HEARTBEAT_TIMEOUT_MS
    header.lb_whole = not config.is_slave  # A slave that has just started has not copied all of them yet.
    if config.is_slave or config.enable_slave_acting_master:
        # A slave's as Apache's: so a name server that has just started takes its topics, too.
        header.enable_acting_master = config.enable_slave_acting_master
    return register_broker(header, RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


def _permitted(topic: TopicConfig, config: BrokerConfig) -> TopicConfig:
    """Return the topic with the permissions that the broker as a whole allows (registerBrokerAll)."""
    perm = topic.perm & (config.broker_permission | PERM_INHERIT)
    return topic if perm == topic.perm else msgspec.structs.replace(topic, perm=perm)


class _NameServer:
    """A name server, and how much of our state it has.

    requested_ms: when the registration under way began. is_linked: it has answered, and the connection is
    still open. known: how many changes of the topics it has received on that connection. answered_ms: when it
    answered last. has_outcome: it has answered, or failed to.
    """

    def __init__(self, address: str, deadlines: Deadlines, registration: "Registration") -> None:
        self.address = address
        self.register = deadlines.new(lambda _: registration._register(self))
        self.heartbeat = deadlines.new(lambda now_ms: registration._send_heartbeat(self, now_ms))
        self.requested_ms: MonotonicMs | None = None
        self.answered_ms: MonotonicMs | None = None
        self.known = -1
        self.is_linked = self.has_changed = self.has_failed = self.has_outcome = False

    def is_waited_for(self, counter: int, now_ms: MonotonicMs) -> bool:
        """Return whether it lacks a change and can be expected to answer soon.

        A name server that let a reply wait in vain is waited for again after it has answered: an outage
        delays one send, not every one that creates a topic.
        """
        is_silent = self.requested_ms is not None and now_ms - self.requested_ms >= ANNOUNCED_MS_MAX
        return not self.has_failed and not is_silent and not (self.is_linked and self.known >= counter)


class Registration:
    """Keeps every name server informed; a `kernel.purgatory.Gate` for the creation of topics."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        name_servers: NameServerList,
        kernel: Kernel,
    ) -> None:
        self._observers: list[Callable[[str, Master | None], None]] = []
        self._return_observers: list[Callable[[], None]] = []
        self.name_servers: Sequence[str] = name_servers
        self._config = config
        self._topics = topics
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._ask_signed = signing(kernel.effects.ask, config.credentials)
        self._purgatory = kernel.purgatory
        self._list = name_servers
        self._list.observe(self._list_changed)
        self._new_name_server = partial(_NameServer, deadlines=kernel.deadlines, registration=self)
        self._name_servers = {address: self._new_name_server(address) for address in name_servers}
        self._waiting: dict[Gated, tuple[int, set[str]]] = {}
        self._encoded: tuple[DataVersion, Call[object]] | None = None
        self._when_informed: Callable[[], None] | None = None
        self._is_begun = False

    @property
    def is_registered(self) -> bool:
        """Return whether a name server has answered, and its connection is open; or there is none."""
        return not self._name_servers or any(each.is_linked for each in self._name_servers.values())

    def observe(self, registered: Callable[[str, Master | None], None]) -> None:
        """Call a function with each name server that answers, and a slave's master, if there is one."""
        self._observers.append(registered)

    def observe_return(self, returned: Callable[[], None]) -> None:
        """Call a function when a name server answers that may have forgotten this broker meanwhile."""
        self._return_observers.append(returned)

    def begin(self, when_informed: Callable[[], None]) -> None:
        """Register, and continue to. when_informed: called once all name servers answered or failed."""
        self._when_informed = when_informed
        self._is_begun = True
        self._topics.observe(lambda _: self.announce())
        now_ms = self._clock.monotonic_ms()
        for name_server in self._name_servers.values():
            name_server.register.at(now_ms)
        self._list.begin()
        self._look_whether_informed()

    def _list_changed(self) -> None:
        """Register at the name servers that are new in the list, and forget those that it lacks."""
        now_ms = self._clock.monotonic_ms()
        for address in [each for each in self._name_servers if each not in self._list]:
            gone = self._name_servers.pop(address)
            gone.register.cancel()
            gone.heartbeat.cancel()
            gone.is_linked, gone.has_failed = False, True  # Nobody waits for it any more.
            self._release(gone, gone.known)
        for address in self._list:
            if address not in self._name_servers:
                added = self._name_servers[address] = self._new_name_server(address)
                added.register.at(now_ms)
        self._look_whether_informed()

    def announce(self) -> None:
        """Inform the name servers soon: the topics have changed."""
        if not self._is_begun:
            return
        for name_server in self._name_servers.values():
            self._register_again(name_server)

    def lost(self, address: str) -> None:
        """Handle the end of a name server's connection: it may lose our registration before we reconnect."""
        name_server = self._name_servers.get(address)
        if name_server is not None and self._is_begun:
            name_server.is_linked = False
            self._register_again(name_server)

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park replies until all name servers know the topics as they are now.

        Name servers that do not answer are not waited for.
        """
        now_ms, counter = self._clock.monotonic_ms(), self._topics.data_version.counter
        waited_for = [each for each in self._name_servers.items() if each[1].is_waited_for(counter, now_ms)]
        awaited = {address for address, _ in waited_for}
        if not awaited or not self._is_begun or not self._purgatory.has_room(parked.connection):
            parked.succeed()
            return
        for _, name_server in waited_for:
            if name_server.requested_ms is None:
                name_server.register.by(now_ms)  # Once the requests of this turn are handled.
        self._purgatory.park(parked, now_ms + ANNOUNCED_MS_MAX, lambda each: each.fail(Missing.ANSWER))
        self._waiting[parked] = counter, awaited

    def leave(self, left: Callable[[], None]) -> None:
        """Unregister from every name server; `left` is called once all have answered or failed to."""
        self._is_begun = False
        self._list.end()
        header = BrokerHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._config.address,
            cluster_name=self._config.cluster_name,
            broker_id=self._config.broker_id,
        )
        unanswered = {address for address, each in self._name_servers.items() if each.is_linked}

        def answered(address: str, _: object) -> None:
            unanswered.discard(address)
            if not unanswered:
                left()

        for name_server in self._name_servers.values():
            name_server.register.cancel()
            name_server.heartbeat.cancel()
        for address in sorted(unanswered):
            call = unregister_broker(header)
            self._ask_signed(Question(address, call, partial(answered, address), UNREGISTER_TIMEOUT_MS))
        if not unanswered:
            left()

    # One name server.

    def _register_again(self, name_server: _NameServer) -> None:
        name_server.has_changed = True
        if name_server.requested_ms is None:
            name_server.register.by(self._clock.monotonic_ms() + CHANGE_DELAY_MS)

    def _register(self, name_server: _NameServer) -> None:
        """Register at one name server; the body is encoded on a thread: 10,000 topics take 100 ms."""
        version = self._topics.data_version
        registered = partial(self._registered, name_server, version.counter)
        name_server.requested_ms, name_server.has_changed = self._clock.monotonic_ms(), False
        if self._encoded is not None and self._encoded[0] == version:
            self._ask(name_server, self._encoded[1], registered)
            return

        def encoded(call: object) -> None:
            if not self._is_wanted(name_server):  # It would be listed again after its departure.
                return
            if isinstance(call, Call):
                self._encoded = (version, call)
                self._ask(name_server, call, registered)
            else:
                registered(call)

        work = partial(introduction, self._config, tuple(self._topics), version)
        self._effects.run(Thread.COMPUTE, work, encoded)

    def _is_wanted(self, name_server: _NameServer) -> bool:
        """Return whether this broker is to be registered at a name server, still."""
        return self._is_begun and self._name_servers.get(name_server.address) is name_server

    def _ask(self, name_server: _NameServer, call: Call[object], answered: Callable[[object], None]) -> None:
        self._ask_signed(Question(name_server.address, call, answered, REGISTER_TIMEOUT_MS))

    def _registered(self, name_server: _NameServer, counter: int, outcome: object) -> None:
        if not self._is_wanted(name_server):
            return
        now_ms = self._clock.monotonic_ms()
        name_server.requested_ms, name_server.has_outcome = None, True
        failed = isinstance(outcome, BaseException)
        if failed and not name_server.has_failed:
            log.warning(
                "name server not reachable; retrying soon", address=name_server.address, reason=str(outcome)
            )
        name_server.has_failed, name_server.is_linked, name_server.known = failed, not failed, counter
        if failed:
            name_server.register.at(now_ms + RETRY_MS)
        else:
            period_ms = min(max(self._config.register_name_server_period_ms, PERIOD_MS_MIN), PERIOD_MS_MAX)
            name_server.register.at(now_ms + (CHANGE_DELAY_MS if name_server.has_changed else period_ms))
            if name_server.heartbeat.due_ms is None:
                name_server.heartbeat.at(now_ms + HEARTBEAT_MS)
            self._note_answer(name_server)
            master = outcome if isinstance(outcome, Master) else None
            for registered in self._observers:
                registered(name_server.address, master)
        self._release(name_server, counter)
        self._look_whether_informed()

    def _release(self, name_server: _NameServer, counter: int) -> None:
        """Answer the replies that waited for this name server last, by success or failure."""
        for parked, (awaited_counter, addresses) in list(self._waiting.items()):
            if not parked.is_parked:
                del self._waiting[parked]
            elif awaited_counter <= counter or name_server.has_failed:
                addresses.discard(name_server.address)
                if not addresses:
                    del self._waiting[parked]
                    self._purgatory.release(parked)
                    parked.succeed()

    def _look_whether_informed(self) -> None:
        if self._when_informed is None or self._list.is_awaited:
            return
        if all(each.has_outcome for each in self._name_servers.values()):
            informed, self._when_informed = self._when_informed, None
            informed()

    def _send_heartbeat(self, name_server: _NameServer, now_ms: MonotonicMs) -> None:
        if not name_server.is_linked:
            return
        name_server.heartbeat.at(now_ms + HEARTBEAT_MS)
        header = BrokerHeartbeatHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._config.address,
            cluster_name=self._config.cluster_name,
        )

        def answered(outcome: object) -> None:
            # One that knows no heartbeats has answered, too. A failure is detected by registrations.
            if isinstance(outcome, BrokerError) or not isinstance(outcome, BaseException):
                self._note_answer(name_server)

        self._ask_signed(Question(name_server.address, broker_heartbeat(header), answered, HEARTBEAT_MS))

    def _note_answer(self, name_server: _NameServer) -> None:
        """Note an answer; register again after a silence, since the name server may have forgotten us."""
        now_ms, answered_ms = self._clock.monotonic_ms(), name_server.answered_ms
        name_server.answered_ms = now_ms
        if answered_ms is not None and now_ms - answered_ms >= SILENT_MS and self._is_wanted(name_server):
            self._register_again(name_server)
            for returned in self._return_observers:
                returned()


class StartUp:
    """Listens once the other brokers are known, then registers. view: None if nobody looks for them."""

    def __init__(self, view: ClusterView | None, registration: Registration, kernel: Kernel) -> None:
        self._view = view
        self._registration = registration
        self._clock, self._effects = kernel.clock, kernel.effects
        self._waited_enough = kernel.deadlines.new(self._give_up)
        self._is_looking = False
        if view is not None:
            view.observe(self._listen)

    def begin(self, started: Callable[[], None]) -> None:
        """Start; `started` is called when name servers were informed, or could not be reached."""
        self._started = started
        self._is_looking = True
        if self._view is None or self._view.is_known:
            self._listen()
        else:
            self._waited_enough.at(self._clock.monotonic_ms() + LOOK_AROUND_MS_MAX)

    def _give_up(self, _: MonotonicMs) -> None:
        log.warning("no name server answers; group members wait until one does")
        self._listen()

    def _listen(self) -> None:
        """Listen: the brokers of the cluster are known, or were awaited for long enough."""
        if self._is_looking:
            self._is_looking = False
            self._waited_enough.cancel()
            self._effects.add(Listen(lambda: self._registration.begin(self._started)))
