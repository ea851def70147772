"""Invariants of the recorded history: compares brokers' records of rebalances with the fences."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from libramq.fencing import MODE_CLIENT, MODE_EPOCHS, Claim
from libramq.groups.rebalance_event import Reason, RebalanceEvent
from libramq.message.queue import MessageQueue
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.broker.broker import Broker
    from libramq.testing.cluster import Cluster

#: Reasons for rebalances in which `who` names members that left.
_LEFT: Final = {
    Reason.MEMBER_LEFT,
    Reason.CONNECTION_CLOSED,
    Reason.SESSION_EXPIRED,
    Reason.PROCESSING_TIMEOUT,
    Reason.OPERATOR,
}


class HistoryAgreesWithFences(Invariant):
    """Check that at the end of a recorded rebalance, the record and the fence agree on the owners of queues.

    The moves recorded since the previous rebalance must lead from its owners to the present ones. A queue
    that did not exist at a record, because its topic temporarily had fewer queues, had no owner then. Its
    fence still has the earlier opening, and the broker cannot know whether that member reads on once the
    queue is back, because only the coordinator gets its release. So the queue has no known owner until it is
    opened again.

    A coordinator that has taken over a group may never have seen a static member that is killed and returns.
    To this coordinator it is a new member, so its queues move.
    """

    name = "the recorded history of a coordinated group agrees with its fences' openings"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._owners: dict[tuple[str, str], dict[MessageQueue, str]] = {}
        self._moves: dict[tuple[str, str], dict[MessageQueue, tuple[str | None, str]]] = {}
        self._gone: dict[tuple[str, str], dict[MessageQueue, Claim]] = {}
        self._left: dict[str, set[str]] = {}
        self._taken_over: set[tuple[str, str]] = set()
        self._wrong = ""

    def step(self) -> None:
        if self._wrong:  # Found in a broker's callback, which would only log an exception.
            self.broken(self._wrong)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        """Drop the observations of a dead broker."""
        for table in (self._owners, self._moves, self._gone):
            for key in [key for key in table if key[0] == name]:
                del table[key]

    def rebalance_recorded(self, broker: str, event: RebalanceEvent) -> None:
        key = (broker, event.group)
        if event.kind == "started" and event.reason in _LEFT and event.who is not None:
            self._left.setdefault(event.group, set()).update(event.who.replace(",", "").split())
        if event.reason is Reason.BROKER_CHANGED:
            self._taken_over.add(key)
        if event.reason is Reason.MODE_CHANGED:
            self._doubt_openings(key)
        running = self.cluster.brokers[broker].broker
        doubtful = self._opened_before_gone(key, running) if running is not None else set()
        if event.kind == "moved":
            self._moves.setdefault(key, {}).update(
                (MessageQueue(move.topic, move.broker, move.queue), (move.from_, move.to))
                for move in event.moves or ()
            )
        if event.kind != "settled":
            return
        moves = self._moves.pop(key, {})
        is_taken_over = key in self._taken_over
        self._taken_over.discard(key)
        is_coordinated = running is not None and running.fences.mode(event.group) == MODE_EPOCHS
        if running is None or not is_coordinated or not event.member_count:  # The group is empty.
            self._owners.pop(key, None)
            return
        owners = self._opened(running, event.group)
        if owners is None:
            self._owners.pop(key, None)
            return
        unnamed = self._unnamed(event, owners)
        if not doubtful:
            self._judge_loads(broker, event, owners)
        before = self._owners.get(key)
        if before is not None:
            if is_taken_over:
                before = {
                    q: former for q, former in before.items() if not self._has_returned(former, owners, q)
                }
            self._judge_moves(broker, event, before, owners, moves)
        self._owners[key] = {
            queue: owner
            for queue, owner in owners.items()
            if queue not in doubtful and self._name(owner) not in unnamed
        }

    def _doubt_openings(self, key: tuple[str, str]) -> None:
        """Distrust earlier openings once members allocate for themselves: they no longer show the reader."""
        running = self.cluster.brokers[key[0]].broker
        if running is not None and running.fences.mode(key[1]) == MODE_CLIENT:
            self._gone.setdefault(key, {}).update(running.fences.claims(key[1]))

    def _opened_before_gone(self, key: tuple[str, str], broker: "Broker") -> set[MessageQueue]:
        """Return queues that were missing and have not been opened since; note those missing now."""
        claims, gone = broker.fences.claims(key[1]), self._gone.get(key, {})
        gone = {queue: claim for queue, claim in gone.items() if claims.get(queue) == claim}
        absent = {q: claim for q, claim in claims.items() if q not in broker.topics.queues(q.topic)}
        self._gone[key] = gone | absent
        return gone.keys() - absent.keys()

    def _opened(self, broker: "Broker", group: str) -> dict[MessageQueue, str] | None:
        """Return the client id of each open queue's owner; None if a member is unknown."""
        names: dict[str, str] = {}
        for node in self.cluster.brokers.values():
            view = node.broker.members.coordination.group(group) if node.broker is not None else None
            names |= {each.member: each.client_id for each in view.members} if view is not None else {}
        openings = broker.fences.openings(group)
        owners = {}
        for queue, claim in broker.fences.claims(group).items():
            exists = queue in broker.topics.queues(queue.topic)
            if not openings.get(queue) or not exists:
                continue
            if claim.member not in names:
                return None  # It has left, so its open queues have no owner.
            owners[queue] = names[claim.member]
        return owners

    def _unnamed(self, event: RebalanceEvent, owners: dict[MessageQueue, str]) -> set[str]:
        """Return the owners that have opened more queues than are recorded.

        A restarted broker that has not heard of the end of a rebalance elsewhere learns a queue's owner from
        its first pull. Until then the queue has no known owner there.
        """
        recorded: Counter[str] = Counter()
        for member, load in (event.loads or {}).items():
            recorded[self._name(member)] += load
        opened = Counter(map(self._name, owners.values()))
        return set(opened - recorded)

    def _judge_loads(self, broker: str, event: RebalanceEvent, owners: dict[MessageQueue, str]) -> None:
        """Compare recorded loads; a restarted broker does not know members of groups coordinated elsewhere.

        A static member that is returning owns its queues even before it opens them again.
        """
        members = {self._name(member) for member in event.members or ()}
        opened = Counter(name for owner in owners.values() if (name := self._name(owner)) in members)
        recorded: Counter[str] = Counter()
        for member, load in (event.loads or {}).items():
            recorded[self._name(member)] += load
        recorded = +recorded  # Drops zero counts.
        running = self.cluster.brokers[broker].broker
        is_here = running is not None and running.members.coordination.group(event.group) is not None
        if recorded != opened if is_here else recorded - opened:
            self._note(f"{broker} records loads {recorded} of {event.group}; opened are {opened}")

    def _judge_moves(
        self,
        broker: str,
        event: RebalanceEvent,
        before: dict[MessageQueue, str],
        owners: dict[MessageQueue, str],
        moves: dict[MessageQueue, tuple[str | None, str]],
    ) -> None:
        if event.moved != len(moves):
            self._note(f"{broker} records {event.moved} moves of {event.group}, but has named {len(moves)}")
        for queue, owner in owners.items():
            former = before.get(queue)
            if former is None:
                continue
            if self._has_moved(event.group, former, owner) is not (queue in moves):
                move = moves.get(queue, "no move")
                self._note(f"{broker} records {move} of {event.group}, {queue}: {former} had it, {owner} has")

    def _has_returned(self, former: str, owners: dict[MessageQueue, str], queue: MessageQueue) -> bool:
        """Return whether a queue's owner is the former owner under another client id."""
        return queue in owners and owners[queue] in self._lives(former)[1:]

    def _note(self, what: str) -> None:
        self._wrong = self._wrong or what

    def _has_moved(self, group: str, former: str, owner: str) -> bool:
        """Return whether a queue has changed its owner, given both client ids.

        A static member that returns within its session is the same member under another client id. Once it
        has left or an operator has removed it, a client with its name is a new member.
        """
        lives = self._lives(former)
        return owner not in lives or not self._left.get(group, set()).isdisjoint(lives[: lives.index(owner)])

    def _lives(self, client_id: str) -> list[str]:
        """Return a member's client ids, starting with this one."""
        name, client_ids = self._name(client_id), [member.client_id for member in self.cluster.members]
        later = client_ids[client_ids.index(client_id) :]
        return [each for each in later if self._name(each) == name]

    def _name(self, client_id: str) -> str:
        """Return a static member's name, or any other member's client id."""
        member = next(member for member in self.cluster.members if member.client_id == client_id)
        return member.instance_id or client_id
