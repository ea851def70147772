"""The slave: how it finds its master through name servers and follows it; whether it acts and serves pops
while the master is gone, and truncates its log when the master is back; its reaction to another lowest broker
id.

    registration ─► the master's addresses ─┬─► HA client      the commit log
                                            └─► table copies   topics, groups, offsets

Upstream: BrokerController.handleRegisterBrokerResult, SlaveSynchronize.java, DefaultHAClient.java.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from libramq.broker.cluster.acting_slave.escaping import KEPT_MS, PAUSE_MS, Escaping
from libramq.broker.cluster.acting_slave.takeover import ActingSlave
from libramq.broker.cluster.registration import Registration
from libramq.broker.cluster.table_copies import TableCopies
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.pop_loading import popped_behind
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.durability import Durability
from libramq.clock import Clock, MonotonicMs
from libramq.errors import LibraError
from libramq.formats.route import MASTER_ID, TopicRouteData
from libramq.formats.tables import PERM_READ
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Callback, Work
from libramq.logs import get_logger
from libramq.message.names import REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from libramq.message.properties import whole_number
from libramq.message.queue import MessageQueue
from libramq.remoting.body.cluster import ClusterInfo
from libramq.remoting.command import Command
from libramq.replication.ha_client import HAClient, Shared, State
from libramq.replication.log_comparison import compare_logs
from libramq.rpc.admin_calls import RUNTIME_INFO
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import Master, cluster_info, topic_route
from libramq.rpc.peer_calls import record_at
from libramq.rpc.question import Ask, Question, answer_to, signing

log = get_logger(__name__)

#: Ours: the interval at which a slave without a master registers, which is how it looks for one.
SEARCH_MS: Final = 3_000
#: Ours: limits what notifications, which anybody can send, add to the log.
LOGGED_EVERY_MS: Final = 1_000
#: Ours: how long a route is valid; members ask every 20 s.
KNOWN_MS: Final = 10_000
#: Ours: at most this many topics' routes are cached.
ROUTES_MAX: Final = 10_000
ANSWER_MS_MAX: Final = 3_000


class Slave:
    """Follows the master."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        offsets: OffsetCommits,
        durability: Durability,
        registration: Registration,
        kernel: Kernel,
    ) -> None:
        self._config = config
        self._store = files.store
        self._filesystem = files.filesystem
        self._clock = kernel.clock
        self._work = kernel.work
        self._registration = registration
        self._ask = signing(kernel.effects.ask, config.credentials)
        self._topics = files.tables.topics
        self._files = files
        self._offsets = offsets
        self._durability = durability
        self._name_server = self._master = self.answered_last = ""
        self.routes = SlaveRoutes(kernel.clock, self._ask, lambda: self.answered_last)
        #: Whether the last name server to answer knows a master.
        self._has_master = True
        self._silent_until_ms = self._look_again_ms = MonotonicMs(0)
        self.client = HAClient(
            self._store,
            kernel,
            compare=self._compare,
            may_cut=self._may_cut,
            was_cut=offsets.cut,
            secret=next(iter(config.brokers_secrets), None),
        )
        self._copies = TableCopies(
            files=files,
            offsets=offsets,
            kernel=kernel,
            ask=self._ask,
            slave=self,
            config=config,
        )
        self._search = kernel.deadlines.new(self._look)
        self._search.at(self._clock.monotonic_ms() + SEARCH_MS)
        registration.observe(self.registered)
        self._kept_until_ms = self._clock.monotonic_ms() + KEPT_MS
        #: Nothing is handed out until then, as a returning master has asked; usually it registers earlier.
        self._paused_until_ms = self._clock.monotonic_ms()
        #: Decides whether this slave acts for its lost master; None unless enableSlaveActingMaster is set.
        self.acting: ActingSlave | None = None
        if config.enable_slave_acting_master:
            self.acting = ActingSlave(config, files, offsets, kernel, self._ask, self)
        #: Delivers for a lost master; None unless enableRemoteEscape is set.
        self.escaping: Escaping | None = None
        if config.enable_remote_escape:
            self.escaping = Escaping(config, files, offsets, kernel, self._ask, self)

    def registered(self, name_server: str, master: Master | None) -> None:
        """Take a name server's answer to our registration, which names the master if there is one."""
        self._has_master, self.answered_last = master is not None, name_server
        if master is not None:
            self._name_server = name_server
            self._paused_until_ms = self._clock.monotonic_ms()
            self._follow(master)
        elif self.acting is not None and not self.acts:
            self.acting.soon()

    def ask_for_master(self, lowest_id: int, offline: str | None) -> None:
        """Query the name servers at once: one of them reports that the master has come or gone."""
        if not self._config.enable_slave_acting_master:
            return
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + LOGGED_EVERY_MS
            log.info("another lowest broker id", id=lowest_id, offline=offline)
        self._registration.announce()

    def master_starts(self, master: Master) -> None:
        """Follow a master that, like Apache's, registers only once its slaves copy its log.

        Ignored unless name servers know no master, because anybody may send this.
        """
        is_known_gone = self.answered_last and not self._has_master and self.client.copying is None
        if self._config.enable_slave_acting_master and is_known_gone:
            self._name_server = self.answered_last
            self._follow(master)

    def _follow(self, master: Master) -> None:
        self._master = master.address
        self.client.follow(self._config.ha_master_address or master.ha_address)
        self._copies.follow(master.address)

    @property
    def is_acting(self) -> bool:
        """Return whether this slave should act for a lost master."""
        is_enabled = self._config.enable_slave_acting_master
        return is_enabled and not self._has_master and self.client.state is not State.COPYING

    @property
    def copying(self) -> int | None:
        """Return the number of the current copying of the log, or None."""
        return self.client.copying

    @property
    def is_copying(self) -> bool:
        """Return whether the master is available and its log is being copied."""
        return self.client.state is State.COPYING

    @property
    def is_ahead_of_master(self) -> bool:
        """Return whether a returning master has yet to ask what was delivered; Apache's never asks."""
        return self._files.passed_on.is_ahead and self._clock.monotonic_ms() < self._kept_until_ms

    @property
    def acts(self) -> bool:
        """Return whether this slave, and no other, acts for the lost master."""
        return self.is_acting and self.acting is not None and self.acting.has_begun

    @property
    def is_confirmed(self) -> bool:
        """Return whether this slave acts, confirmed by a name server within the last seconds."""
        return self.acts and self.acting is not None and self.acting.is_confirmed

    @property
    def may_serve_pops(self) -> bool:
        """Return whether this slave acts and knows, as far as possible, what its master has popped."""
        is_paused = self._clock.monotonic_ms() < self._paused_until_ms
        return self.acts and not is_paused and (self.escaping is None or self.escaping.knows_popped)

    @property
    def is_named_for_master(self) -> bool:
        """Return whether name servers have lost a master whose log is copied; routes name this slave."""
        return self._config.enable_slave_acting_master and not self._has_master and self.is_copying

    def look_for_master(self) -> None:
        """Ask name servers whether they have lost the master, as a client takes this slave for it."""
        now_ms = self._clock.monotonic_ms()
        if self._has_master and self.is_copying and now_ms >= self._look_again_ms:
            self._look_again_ms = now_ms + LOGGED_EVERY_MS
            self._registration.announce()

    def ask_master(self, call: Call[Command], answered: Callable[[Any], None], timeout_ms: int) -> None:
        """Ask the master."""
        self._ask(Question(self._master, call, answered, timeout_ms))

    def answer_master(self) -> bool:
        """Stop delivering for a returning master; return whether answers are still pending."""
        self._paused_until_ms = self._clock.monotonic_ms() + PAUSE_MS
        is_awaiting = self.escaping is not None and self.escaping.pause()
        self._files.passed_on.is_ahead = is_awaiting
        return is_awaiting

    def interrupted(self) -> None:
        """Forget pending sends, but not the finished ones: another slave may have acted meanwhile."""
        if self.escaping is not None:
            self.escaping.begin_again()

    def answer_peer(self, broker_id: int) -> bool:
        """Make way for a slave with a lower id; return whether answers are still pending."""
        if self.acting is not None:
            self.acting.make_way(broker_id)
        return self.escaping is not None and self.escaping.is_awaiting

    def settle(self) -> None:
        """Report stored records; copy the tables soon if a topic is new."""
        self.client.settle()
        new_topics = self._store.copy.new_topics
        if new_topics:
            if any(topic not in self._topics for topic in new_topics):
                self._copies.soon()
            new_topics.clear()
        self._copies.settle()

    def _may_cut(self, end: int) -> bool:
        """Remove from the disk all references to the part to cut; return whether the log may be cut now."""
        if self.escaping is not None:
            self.escaping.forget()
        if self.acting is not None:
            self.acting.forget()
        if not self._files.passed_on.cut(self._store.first_offset_at(TIMER_TOPIC, 0, end)):
            self._files.save_progress_soon()
            return False
        progress = self._copies.progress
        if progress.applied_end is None or end < progress.applied_end:
            progress.drop()
            self._files.forget_progress()
            if not self._files.is_progress_saved:
                return False
            progress.applied_end = end
        is_writing = self._durability.is_flushing() or any(file.is_writing for file in self._files.progress)
        return not is_writing and self._lower_offsets(end)

    def _lower_offsets(self, end: int) -> bool:
        """Lower the offsets of groups whose check points will be truncated; return whether they are saved."""
        revive_topic = REVIVE_TOPIC_PREFIX + self._config.cluster_name
        try:
            self._offsets.lower(popped_behind(self._store, end, revive_topic))
        except OSError as error:
            log.warning("offsets cannot be lowered before a cut; retrying", reason=str(error))
            return False
        return True

    def _look(self, now_ms: MonotonicMs) -> None:
        if not (self.is_copying and self._has_master):
            self._registration.announce()
        self._search.at(now_ms + SEARCH_MS)

    def _compare(self, done: Callable[[Shared], None]) -> None:
        """Compare the logs before copying; from now on the master has time to ask what was delivered."""
        self._kept_until_ms = self._clock.monotonic_ms() + KEPT_MS
        self._work(self._compared(done))

    def _compared(self, done: Callable[[Shared], None]) -> Work[None]:
        done((yield from self._shared()))

    def _shared(self) -> Work[Shared]:
        """Find the offset up to which the logs are equal, after making sure that the master is ours."""
        mismatch = None
        with suppress(LibraError):
            mismatch = self._mismatch((yield self._answer(self._name_server, cluster_info())))
        if mismatch is not None:
            return mismatch
        if self._store.copy.is_empty:
            return 0
        try:
            info: dict[str, str] = yield self._answer(self._master, RUNTIME_INFO)
        except LibraError as error:
            return f"the beginning of the master's log is unknown: {error}"
        return (
            yield from compare_logs(
                self._store,
                self._filesystem,
                master_begins=max(0, whole_number(info.get("commitLogMinOffset", "")) or 0),
                ask=lambda offset, ours: self._answer(self._master, record_at(offset, ours)),
            )
        )

    def _answer(self, address: str, call: Call[Any]) -> Callback:
        return answer_to(self._ask, address, call, ANSWER_MS_MAX)

    def _mismatch(self, info: ClusterInfo) -> str | None:
        """Return why the master cannot be ours, or None if it can."""
        name, cluster = self._config.broker_name, self._config.cluster_name
        others = [
            other for other, names in info.cluster_addr_table.items() if name in names and other != cluster
        ]
        if others:
            return (
                f"the master of {name} at {self._master} belongs to cluster {others[0]}, and this slave to "
                f"{cluster}: correct brokerClusterName, or give this slave another brokerName"
            )
        known = info.addresses_of(name).get(MASTER_ID)
        if known is not None and known != self._master:
            return f"the master of {name} is at {known} now, and not at {self._master}"
        return None


class SlaveRoutes:
    """Finds all queues of a topic, which an acting slave assigns to members that pop.

    A master knows the other brokers (`peer_brokers.py`); a slave queries its name server, whose routes list
    the slave in its master's place. While an answer is pending, nothing is assigned; members ask again within
    a second. name_server: returns the one to query. Upstream: TopicRouteInfoManager.getTopicSubscribeInfo.
    """

    def __init__(self, clock: Clock, ask: Ask, name_server: Callable[[], str]) -> None:
        self._clock = clock
        self._ask = ask
        self._name_server = name_server
        self._known: dict[str, tuple[MonotonicMs, list[MessageQueue]]] = {}
        self._pending: set[str] = set()

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return all readable queues of a topic, sorted, or None while they are unknown."""
        since_ms, queues = self._known.get(topic, (None, []))
        if since_ms is not None and self._clock.monotonic_ms() - since_ms < KNOWN_MS:
            return queues
        if topic not in self._pending and len(self._pending) < ROUTES_MAX:
            self._pending.add(topic)
            answered = partial(self._answered, topic)
            self._ask(Question(self._name_server(), topic_route(topic), answered, ANSWER_MS_MAX))
        return queues or None

    def _answered(self, topic: str, route: TopicRouteData | LibraError) -> None:
        self._pending.discard(topic)
        if isinstance(route, LibraError):
            return
        if len(self._known) >= ROUTES_MAX:
            self._known.clear()
        queues = [
            MessageQueue(topic, each.broker_name, queue_id)
            for each in route.queue_datas
            if each.perm & PERM_READ
            for queue_id in range(each.read_queue_nums)
        ]
        self._known[topic] = self._clock.monotonic_ms(), sorted(queues)
