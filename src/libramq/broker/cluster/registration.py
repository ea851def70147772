"""The registration: what a broker reports to name servers, and how often; how long the send that creates a
topic or a group's first heartbeat waits for that; heartbeats; and when a starting broker may listen before
name servers have answered.

A broker registers at every name server at start, every 30 s and after each change of its topics. It also
sends a heartbeat every second, so that name servers remove a stalled broker, and its groups get other
coordinators, within seconds. Each name server is served independently: one that hangs delays no other.

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
#: BrokerConfig.brokerHeartbeatInterval and brokerNotActiveTimeoutMillis: upstream's values if slaves act as
#: masters; otherwise upstream sends no heartbeats, and a stalled broker stays registered for two minutes.
#: Name servers before 5.0 know neither.
HEARTBEAT_MS: Final = 1_000
HEARTBEAT_TIMEOUT_MS: Final = 10_000
#: Ours: a name server that was silent for this long may have forgotten this broker when it answers again; it
#: forgets a broker after HEARTBEAT_TIMEOUT_MS.
SILENT_MS: Final = HEARTBEAT_TIMEOUT_MS // 2
#: Ours: several topics created in one turn, or soon after one another, cause one registration. If a reply
#: waits for it, it begins at once.
CHANGE_DELAY_MS: Final = 2
#: Ours: limits the shutdown to what a user will wait for; name servers notice the closed connection anyway.
UNREGISTER_TIMEOUT_MS: Final = 1_000
#: Ours: how long a starting broker waits to discover the other brokers.
LOOK_AROUND_MS_MAX: Final = 1_000
#: Ours: how long a starting broker waits for silent name servers; it registers there when they answer.
FIRST_ROUND_MS_MAX: Final = 3_000
#: Ours: unreachable name servers are retried soon, so that the starting order does not matter.
RETRY_MS: Final = 1_000
#: Ours: the send that creates a topic is answered by then at the latest; clients wait at least 3 s.
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
    header.lb_whole = not config.is_slave  # A slave that has just started has not copied all topics yet.
    if config.is_slave or config.enable_slave_acting_master:
        # As Apache's slave does, so that a name server that has just started accepts its topics.
        header.enable_acting_master = config.enable_slave_acting_master
    return register_broker(header, RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


def _permitted(topic: TopicConfig, config: BrokerConfig) -> TopicConfig:
    """Return the topic with the permissions that the broker as a whole allows (registerBrokerAll)."""
    perm = topic.perm & (config.broker_permission | PERM_INHERIT)
    return topic if perm == topic.perm else msgspec.structs.replace(topic, perm=perm)


class _NameServer:
    """A name server, and which part of our state it has.

    requested_ms: start of the pending registration. is_linked: the name server has answered, and the
    connection is still open. known: the topic table's version it has received on that connection.
    answered_ms: its last answer. has_outcome: it has answered or failed.
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
        """Return whether the name server lacks a change and can be expected to answer soon.

        After a timeout, replies wait for a name server again only once it has answered: an outage delays one
        send, not every send that creates a topic.
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
        """Return whether a name server has answered on an open connection, or none is known."""
        return not self._name_servers or any(each.is_linked for each in self._name_servers.values())

    def observe(self, registered: Callable[[str, Master | None], None]) -> None:
        """Call a function after each answer with the name server and a slave's master, if there is one."""
        self._observers.append(registered)

    def observe_return(self, returned: Callable[[], None]) -> None:
        """Call a function when a name server that may have forgotten this broker answers again."""
        self._return_observers.append(returned)

    def begin(self, when_informed: Callable[[], None]) -> None:
        """Start registering. when_informed: called once every name server has answered or failed."""
        self._when_informed = when_informed
        self._is_begun = True
        self._topics.observe(lambda _: self.announce())
        now_ms = self._clock.monotonic_ms()
        for name_server in self._name_servers.values():
            name_server.register.at(now_ms)
        self._list.begin()
        self._look_whether_informed()

    def _list_changed(self) -> None:
        """Register at name servers added to the list, and drop the removed ones."""
        now_ms = self._clock.monotonic_ms()
        for address in [each for each in self._name_servers if each not in self._list]:
            gone = self._name_servers.pop(address)
            gone.register.cancel()
            gone.heartbeat.cancel()
            gone.is_linked, gone.has_failed = False, True  # Release the replies that wait for it.
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
        """Handle the end of a name server's connection: it may drop our registration before we reconnect."""
        name_server = self._name_servers.get(address)
        if name_server is not None and self._is_begun:
            name_server.is_linked = False
            self._register_again(name_server)

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park a reply until every name server knows the current topics.

        Unresponsive name servers are not waited for.
        """
        now_ms, counter = self._clock.monotonic_ms(), self._topics.data_version.counter
        waited_for = [each for each in self._name_servers.items() if each[1].is_waited_for(counter, now_ms)]
        awaited = {address for address, _ in waited_for}
        if not awaited or not self._is_begun or not self._purgatory.has_room(parked.connection):
            parked.succeed()
            return
        for _, name_server in waited_for:
            if name_server.requested_ms is None:
                name_server.register.by(now_ms)  # After the requests of this turn.
        self._purgatory.park(parked, now_ms + ANNOUNCED_MS_MAX, lambda each: each.fail(Missing.ANSWER))
        self._waiting[parked] = counter, awaited

    def leave(self, left: Callable[[], None]) -> None:
        """Unregister from every name server; `left` is called once each has answered or failed."""
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
        """Register at one name server; a thread encodes the body, which takes 100 ms for 10,000 topics."""
        version = self._topics.data_version
        registered = partial(self._registered, name_server, version.counter)
        name_server.requested_ms, name_server.has_changed = self._clock.monotonic_ms(), False
        if self._encoded is not None and self._encoded[0] == version:
            self._ask(name_server, self._encoded[1], registered)
            return

        def encoded(call: object) -> None:
            if not self._is_wanted(name_server):  # Else it would be listed again after its departure.
                return
            if isinstance(call, Call):
                self._encoded = (version, call)
                self._ask(name_server, call, registered)
            else:
                registered(call)

        work = partial(introduction, self._config, tuple(self._topics), version)
        self._effects.run(Thread.COMPUTE, work, encoded)

    def _is_wanted(self, name_server: _NameServer) -> bool:
        """Return whether this broker should still register at a name server."""
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
        """Answer the replies that waited only for this name server, whether it succeeded or failed."""
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
            # A name server without heartbeat support has answered as well. Registrations detect failures.
            if isinstance(outcome, BrokerError) or not isinstance(outcome, BaseException):
                self._note_answer(name_server)

        self._ask_signed(Question(name_server.address, broker_heartbeat(header), answered, HEARTBEAT_MS))

    def _note_answer(self, name_server: _NameServer) -> None:
        """Note an answer; after a silence, register again, since the name server may have forgotten us."""
        now_ms, answered_ms = self._clock.monotonic_ms(), name_server.answered_ms
        name_server.answered_ms = now_ms
        if answered_ms is not None and now_ms - answered_ms >= SILENT_MS and self._is_wanted(name_server):
            self._register_again(name_server)
            for returned in self._return_observers:
                returned()


class StartUp:
    """Listens once the other brokers are known, then registers. view: None if they need not be known."""

    def __init__(self, view: ClusterView | None, registration: Registration, kernel: Kernel) -> None:
        self._view = view
        self._registration = registration
        self._clock, self._effects = kernel.clock, kernel.effects
        self._waited_enough = kernel.deadlines.new(self._give_up)
        self._is_looking = False
        if view is not None:
            view.observe(self._listen)

    def begin(self, started: Callable[[], None]) -> None:
        """Start; `started` is called once name servers were informed or could not be reached."""
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
        """Listen: the brokers of the cluster are known, or the wait is over."""
        if self._is_looking:
            self._is_looking = False
            self._waited_enough.cancel()
            self._effects.add(Listen(lambda: self._registration.begin(self._started)))
