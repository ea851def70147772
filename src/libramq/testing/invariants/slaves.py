"""Invariants of slaves: they copy their master's log, change nothing, and lose nothing when promoted."""

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from libramq.clock import MonotonicMs
from libramq.fencing import Claim
from libramq.message.queue import MessageQueue
from libramq.testing.happening import Happening
from libramq.testing.history import StoredMessage
from libramq.testing.invariants.invariant import Invariant, ids_by_offset

if TYPE_CHECKING:
    from libramq.broker.broker import Broker
    from libramq.testing.cluster import Cluster
    from libramq.testing.nodes.broker_node import SimulatedSlave


#: Many times a round trip of 20 ms.
LAG_MS_MAX: Final = 1_000


#: Actions of an acting slave in this time before its end may be repeated: it writes them to disk, and other
#: slaves copy them, only once a second.
LAST_MOMENT_MS: Final = 1_500
#: How long a restarted slave must run before it knows its master's actions.
SETTLED_MS: Final = 5_000


class OfPairs(Invariant):
    """The base of exactly-once rules, checked while only masters, acting slaves and members fail."""

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._is_judged = True
        #: The ends of all logs after the last steps.
        self._ends: deque[tuple[MonotonicMs, dict[str, int]]] = deque(maxlen=LAST_MOMENT_MS // 100 + 1)
        #: By broker: log ranges stored just before a slave ended.
        self._last_moments: dict[str, list[range]] = defaultdict(list)
        #: When each slave was last seen not running.
        self._away_ms: dict[str, MonotonicMs] = {}
        #: When each slave last had its master's whole log.
        self._had_all: dict[str, MonotonicMs] = {}
        #: The last known end of each slave's log.
        self._copied_to: dict[str, int] = {}
        #: By master: log ranges that its slaves lacked while it was down or frozen.
        self._not_copied: dict[str, list[range]] = defaultdict(list)
        #: The same for masters that are frozen now.
        self._frozen: dict[str, range] = {}

    def step(self) -> None:
        if not self.cluster.has_acting_slaves:
            return
        now_ms = self.cluster.now_ms
        self._ends.append((now_ms, _log_ends(self.cluster)))
        self._note_copies()
        self._note_frozen()
        for slave in self.cluster.every_slave:
            if slave.broker is None:
                self._away_ms[slave.name] = now_ms
            elif slave.is_caught_up:
                self._had_all[slave.name] = now_ms

    def _note_copies(self) -> None:
        self._copied_to |= {
            slave.name: slave.broker.store.end
            for slave in self.cluster.every_slave
            if slave.broker is not None
        }

    def _note_frozen(self) -> None:
        """Note the log range that a frozen master's slaves lack; part of it may still be in flight."""
        for master in {slave.master.name: slave.master for slave in self.cluster.every_slave}.values():
            if master.process.is_paused and master.broker is not None:
                self._frozen[master.name] = range(self._end_of_copies(master.name), master.broker.store.end)
            elif master.name in self._frozen:
                self._not_copied[master.name].append(self._frozen.pop(master.name))

    def _end_of_copies(self, master: str) -> int:
        """Return the lowest end of the master's slaves' logs."""
        copies = (slave.name for slave in self.cluster.every_slave if slave.master.name == master)
        return min(self._copied_to.get(slave, 0) for slave in copies)

    def disturbed(self, what: str) -> None:
        name, _, how = what.partition(" ")
        is_master = name in self.cluster.slaves and how.startswith(("is killed", "loses power", "freezes"))
        self._is_judged &= is_master or name.startswith(("member", "acting"))
        if is_master and any(
            each.master.name == name and not self._knows(each) for each in self.cluster.every_slave
        ):
            self._is_judged = False

    def _knows(self, slave: "SimulatedSlave") -> bool:
        """Return whether a slave that begins to act knows its master's actions."""
        now_ms, never_ms = self.cluster.now_ms, MonotonicMs(0)
        is_settled = now_ms - self._away_ms.get(slave.name, never_ms) >= SETTLED_MS
        return is_settled and now_ms - self._had_all.get(slave.name, never_ms) <= LAG_MS_MAX

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._is_judged &= durable_to is None or self.cluster.is_sync
        self._note_copies()

    def broker_recovered(self, name: str, broker: "Broker") -> None:
        if self.cluster.has_acting_slaves and name in self.cluster.slaves:
            self._not_copied[name].append(range(self._end_of_copies(name), broker.store.end))

    def slave_ended(self, name: str, durable_to: int | None) -> None:
        self._is_judged &= durable_to is None or self.cluster.is_sync
        if self._ends:
            now = _log_ends(self.cluster)
            for broker, begin in self._ends[0][1].items():
                self._last_moments[broker].append(range(begin, now.get(broker, begin)))

    def topic_deleted(self, name: str, topic: str) -> None:
        self._is_judged = False

    def may_repeat(self, broker: str, place: int) -> bool:
        """Return whether the action recorded at a log offset may be repeated.

        That is so if a slave ended right after it, or if the master ended or froze before all slaves copied
        it.
        """
        is_unknown = any(place in each for each in self._not_copied[broker])
        return is_unknown or self.is_last_moment(broker, place)

    def is_last_moment(self, broker: str, place: int) -> bool:
        """Return whether a slave ended right after the record at a log offset was stored."""
        return any(place in each for each in self._last_moments[broker])


def _log_ends(cluster: "Cluster") -> dict[str, int]:
    return {name: node.broker.store.end for name, node in cluster.brokers.items() if node.broker is not None}


class SlavesOnlyRead(Invariant):
    """Check that nothing is opened or committed at a slave: a queue's fence is at its master.

    Exception: members that allocate for themselves may commit at an acting slave.
    """

    name = "a slave lets nobody open a queue or commit"

    def changed_at_slave(self, group: str, queue: MessageQueue, what: str, claim: Claim | None) -> None:
        if what == "a commit" and claim is None and self.cluster.has_acting_slaves:
            return
        self.broken(f"{group}: {what} of {queue} at its slave")


class SlavesHaveTheLog(Invariant):
    """Check that every slave has its master's log, byte for byte, once faults have ended.

    Under load a slave may lack the latest records, but must have what its master had a second ago.
    """

    name = "a slave's log equals its master's soon after faults end"
    within_ms = 30_000  # An HA connection that lost bytes unnoticed ends after 20 s of silence.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: By slave: an end of its master's log that it has yet to reach or has just reached, and since when.
        self._ends: dict[str, tuple[int, MonotonicMs]] = {}
        #: Masters that lost their whole log in a power cut after a slave had begun to copy it.
        self._lost_everything: set[str] = set()

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to == 0:
            self._lost_everything.update(
                slave.master.name
                for slave in self.cluster.every_slave
                if slave.master.name == name and slave.broker is not None and slave.broker.store.end
            )

    def step(self) -> None:
        for slave in self.cluster.every_slave:
            ours, theirs = slave.broker, slave.master.broker
            if ours is None or theirs is None:
                continue
            end = self._ends.get(slave.name, (0, 0))[0]
            if end <= ours.store.end or end > theirs.store.end:
                self._ends[slave.name] = (theirs.store.end, self.cluster.now_ms)

    def is_met(self) -> bool:
        return all(map(self._has_followed, self.cluster.every_slave))

    def _has_followed(self, slave: "SimulatedSlave") -> bool:
        if slave.is_caught_up or slave.master.name in self._lost_everything:
            return True  # The logs have nothing in common; an operator has to delete the slave's.
        noted = self._ends.get(slave.name)
        return slave.is_copying and noted is not None and self.cluster.now_ms - noted[1] <= LAG_MS_MAX

    def finish(self) -> None:
        for slave in self.cluster.every_slave:
            if not self._has_followed(slave):
                self.broken(f"{slave.name} has not caught up with its master")
            difference = _difference(slave)
            if difference is not None and slave.master.name not in self._lost_everything:
                self.broken(f"{slave.name} differs from its master at {difference}")


class PromotionsLoseNothing(Invariant):
    """Check that a promoted slave has every message that its SYNC_MASTER acknowledged.

    Whenever the master ends, and at the end of the simulation, this starts a broker as a master on a copy of
    the slave's disk. Under ASYNC_FLUSH a power cut may take messages that the slave had confirmed, which it
    lacks until it has copied them again.
    """

    name = "messages acknowledged by a SYNC_MASTER survive the promotion of its slave"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: By broker, queue and offset: message id and time of sending.
        self._stored: dict[str, dict[MessageQueue, dict[int, tuple[str, MonotonicMs]]]] = defaultdict(
            lambda: defaultdict(dict)
        )

    def stored(self, message: StoredMessage) -> None:
        queue, offset, _, message_id, requested_ms = message
        name = queue.broker_name
        if not self.cluster.waits_for_slaves or name not in self.cluster.slaves:
            return
        if not self.cluster.may_have_lost(name, requested_ms):
            self._stored[name][queue][offset] = (message_id, requested_ms)

    def topic_deleted(self, name: str, topic: str) -> None:
        stored = self._stored[name]
        for queue in [queue for queue in stored if queue.topic == topic]:
            del stored[queue]

    def step(self) -> None:
        for slave in self.cluster.slaves.values():
            if slave.may_lack and slave.is_caught_up:
                slave.may_lack = False

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._promote(name)
        if durable_to is not None and not self.cluster.is_sync:
            self._stored.pop(name, None)  # The slave truncates its log to match.

    def finish(self) -> None:
        for name in self.cluster.slaves:
            self._promote(name)

    def _promote(self, name: str) -> None:
        slave, stored = self.cluster.slaves.get(name), self._stored.get(name)
        if slave is None or not stored or slave.may_lack:
            return
        self.cluster.world.history.happened(Happening.PROMOTED, name)
        promoted = slave.promoted()
        for queue, messages in stored.items():
            found = ids_by_offset(promoted, queue.topic, queue.queue_id)
            for offset, (message_id, requested_ms) in messages.items():
                if found.get(offset) != message_id and not self.cluster.was_deleted(queue, requested_ms):
                    self.broken(
                        f"{queue}:{offset} was acknowledged for {message_id}; the promoted slave has"
                        f" {found.get(offset)}"
                    )


def _difference(slave: "SimulatedSlave") -> int | None:
    """Return the first log file that differs from the master's; None if all are equal."""
    ours, theirs = slave.broker, slave.master.broker
    assert ours is not None
    assert theirs is not None
    position = max(ours.store.log_start, theirs.store.log_start)
    while position < ours.store.end:
        end = min(ours.store.log_file_end(position), ours.store.end)
        if ours.store.read_log(position, end - position, may_wait=True) != theirs.store.read_log(
            position, end - position, may_wait=True
        ):
            return position
        position = end
    return None
