"""Members that query their queues where their group lives, also after it has moved to another broker."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import ConfigError
from libramq.groups import limits
from libramq.groups.assignment_tables import AssignmentUpdate
from libramq.groups.broker_assignment import LARGE_GROUP, LARGE_GROUP_PAUSE_MS, REST_MS, TargetWork
from libramq.groups.roster import ServerAssignedMembers
from libramq.groups.server_assigned_groups import ServerAssignedGroups
from libramq.message.queue import MessageQueue

A, B = "broker-a", "broker-b"


class Cluster:
    """Two brokers with queues of T. Members query, and the group lives at one of the brokers."""

    def __init__(self, count: int = 4) -> None:
        self.queues: dict[str, list[MessageQueue] | None] = {
            "T": [MessageQueue("T", broker, number) for broker in (A, B) for number in range(count)]
        }
        self.topics: dict[str, frozenset[str]] = {}
        self.allocates = False
        self.version = 0
        self.now_ms = 1_000
        self.holds: dict[str, set[MessageQueue]] = {}
        self.again: dict[str, int] = {}
        self.brokers = {name: self.new_broker(name) for name in (A, B)}
        self.coordinator = A

    def new_broker(self, name: str) -> ServerAssignedGroups:
        return ServerAssignedGroups(name, members=lambda _: self.members(), queues=self.queues.get)

    def members(self) -> ServerAssignedMembers | None:
        return ServerAssignedMembers(self.version, dict(self.topics), self.allocates) if self.topics else None

    def say(self, word: AssignmentUpdate | None) -> None:
        """Send the coordinator's update to all brokers."""
        if word is not None:
            self.again |= word.ask_again
            for name, broker in self.brokers.items():
                if name != self.coordinator:
                    broker.tables.take(word)

    def change(self) -> None:
        """Announce changed members or queues to the coordinator."""
        self.version += 1
        self.say(self.brokers[self.coordinator].review("g", now_ms=self.now_ms))

    def join(self, *client_ids: str) -> None:
        for client_id in client_ids:
            self.topics[client_id] = frozenset({"T"})
            self.holds[client_id] = set()
        self.change()

    def leave(self, client_id: str) -> None:
        del self.topics[client_id], self.holds[client_id]
        self.change()

    def ask(self, *client_ids: str) -> None:
        for client_id in client_ids:
            self.again.pop(client_id, None)
            decision = self.brokers[self.coordinator].ask("g", client_id, "T", "AVG", now_ms=self.now_ms)
            self.say(decision.update)
            if decision.queues is not None:
                self.holds[client_id] = set(decision.queues)

    def ask_until_quiet(self) -> None:
        """Let the notified members query, until none is notified."""
        for _ in range(20):
            if not self.again:
                return
            self.now_ms += max(self.again.values())
            self.ask(*self.again)
        raise AssertionError(f"{self.again} are still told to query again")

    def move(self, coordinator: str, *, is_dead: bool = False) -> None:
        """Move the group to the other broker; the previous one passes on its state, or is dead."""
        before, after = self.brokers[self.coordinator], self.brokers[coordinator]
        if is_dead:
            self.brokers[self.coordinator] = self.new_broker(self.coordinator)
        else:
            before.leave("g")
            for body in before.tables.updates(lambda _: True):
                after.tables.offer(body)
        self.coordinator = coordinator
        for group in list(after.tables):
            self.say(after.adopt(group))
            self.say(after.review(group, now_ms=self.now_ms))

    def held(self) -> list[MessageQueue]:
        return sorted(queue for queues in self.holds.values() for queue in queues)

    def loads(self) -> list[int]:
        return sorted(len(queues) for queues in self.holds.values())


def moved(before: dict[str, set[MessageQueue]], after: dict[str, set[MessageQueue]]) -> int:
    return sum(len(queues - before.get(who, set())) for who, queues in after.items())


def copied(holds: dict[str, set[MessageQueue]]) -> dict[str, set[MessageQueue]]:
    return {who: set(queues) for who, queues in holds.items()}


def test_a_third_member_moves_the_minimum_of_the_queues_of_both_brokers():
    cluster = Cluster()
    cluster.join("alice", "bob")
    cluster.ask("alice", "bob")
    assert cluster.loads() == [4, 4]
    before = copied(cluster.holds)
    cluster.join("carol")
    cluster.ask("carol")
    assert cluster.holds["carol"] == set(), "no member has released a queue yet"
    assert cluster.again == {"alice": 1, "bob": 1}
    cluster.ask_until_quiet()
    assert (cluster.loads(), moved(before, cluster.holds)) == ([2, 3, 3], 2)


def test_every_broker_keeps_the_assignment():
    cluster = Cluster()
    cluster.join("alice", "bob")
    cluster.ask("alice", "bob")
    remembered = cluster.brokers[B].tables.assignments("g")
    assert {who: set(lots["T"]) for who, lots in remembered.items()} == cluster.holds
    cluster.leave("bob")
    assert list(cluster.brokers[B].tables.assignments("g")) == ["alice"]
    cluster.leave("alice")
    assert [list(broker.tables) for broker in cluster.brokers.values()] == [[], []]


@pytest.mark.parametrize("is_dead", [False, True])
def test_nothing_moves_when_the_coordinator_changes(is_dead):
    cluster = Cluster()
    cluster.join("alice", "bob", "carol")
    cluster.ask("alice", "bob", "carol")
    before = copied(cluster.holds)
    cluster.move(B, is_dead=is_dead)
    assert cluster.again == {}
    cluster.ask("carol", "bob", "alice")
    assert cluster.holds == before


def test_a_handover_continues_at_the_next_coordinator():
    """alice has not released the queues that bob waits for when the broker dies."""
    cluster = Cluster()
    cluster.join("alice")
    cluster.ask("alice")
    cluster.join("bob")
    cluster.ask("bob")
    cluster.again.clear()
    cluster.move(B, is_dead=True)
    cluster.ask("bob")
    assert cluster.holds["bob"] == set()
    assert cluster.again == {"alice": 1}
    cluster.ask_until_quiet()
    assert (cluster.loads(), len(set(cluster.held()))) == ([4, 4], 8)


def test_members_that_another_coordinator_gave_other_queues_query_again():
    """B was cut off and also coordinated the group, knowing only its own queues; the group lives at A."""
    cluster = Cluster()
    cluster.join("alice", "bob")
    cluster.ask("alice", "bob")
    here, elsewhere = cluster.brokers.values()
    copy = next(iter(elsewhere.tables.updates(lambda _: True)))
    assert here.reassigned_members(copy) == set(), "an older copy of its own"
    cluster.queues["T"] = [queue for queue in cluster.queues["T"] if queue.broker_name == B]
    elsewhere.adopt("g")
    elsewhere.ask("g", "bob", "T", "AVG", now_ms=cluster.now_ms)
    (table,) = elsewhere.tables.updates(lambda _: True)
    assert here.reassigned_members(table) == {"bob"}
    assert here.have_query("g", ["bob"]).ask_again == {"bob": 1}
    assert here.tables.version("g") == copy.version, "nothing was assigned"


def test_queues_of_a_member_that_left_during_a_coordinator_change_are_free():
    cluster = Cluster()
    cluster.join("alice", "bob")
    cluster.ask("alice", "bob")
    del cluster.topics["bob"], cluster.holds["bob"]
    cluster.move(B)
    assert cluster.again == {"alice": REST_MS}
    cluster.ask_until_quiet()
    assert len(cluster.holds["alice"]) == 8


def test_queues_of_a_broker_that_leaves_and_returns_move_the_minimum():
    cluster = Cluster()
    cluster.join("alice", "bob", "carol")
    cluster.ask("alice", "bob", "carol")
    everything = cluster.queues["T"]
    cluster.queues["T"] = [queue for queue in everything if queue.broker_name == A]
    before = {who: {queue for queue in lot if queue.broker_name == A} for who, lot in cluster.holds.items()}
    cluster.change()
    cluster.ask_until_quiet()
    assert cluster.loads() == [1, 1, 2]
    excess = sum(max(len(lot) - 2, 0) for lot in before.values())
    lacks = sum(not lot for lot in before.values())
    assert moved(before, cluster.holds) == max(excess, lacks)
    before = copied(cluster.holds)
    cluster.queues["T"] = everything
    cluster.change()
    cluster.ask_until_quiet()
    assert (cluster.loads(), moved(before, cluster.holds)) == ([2, 3, 3], 4)


def test_members_keep_their_queues_while_the_queues_of_a_topic_are_unknown():
    cluster = Cluster()
    cluster.join("alice")
    cluster.ask("alice")
    known, cluster.queues["T"] = cluster.queues["T"], None
    cluster.join("bob")
    cluster.ask("bob", "alice")
    assert len(cluster.holds["alice"]) == 8
    assert cluster.brokers[A].topics() == {"T"}
    cluster.queues["T"] = known
    cluster.change()
    assert cluster.again == {"alice": 1}


def test_beside_a_member_that_allocates_the_named_strategy_counts_for_all():
    cluster = Cluster()
    cluster.join("alice", "bob")
    cluster.ask("alice", "bob")
    cluster.allocates = True
    cluster.change()
    assert cluster.again == {"alice": 1, "bob": 1}
    cluster.ask("alice", "bob")
    assert cluster.holds["alice"] == {queue for queue in cluster.queues["T"] if queue.broker_name == A}
    with pytest.raises(ConfigError, match="MINE"):
        cluster.brokers[A].ask("g", "alice", "T", "MINE", now_ms=0)
    cluster.allocates = False
    cluster.change()
    assert cluster.again == {"alice": 1, "bob": 1}


def test_a_large_group_is_reviewed_when_its_target_is_old():
    cluster = Cluster()
    cluster.join(*(f"c{number}" for number in range(LARGE_GROUP + 1)))
    cluster.ask("c0")
    assert cluster.brokers[A].fresh_until_ms("g") == cluster.now_ms + LARGE_GROUP_PAUSE_MS


def test_an_update_from_a_former_coordinator_is_ignored():
    cluster = Cluster()
    cluster.join("alice")
    late = cluster.brokers[A].ask("g", "alice", "T", "AVG", now_ms=cluster.now_ms).update
    observer = cluster.new_broker("broker-c")
    observer.tables.take(AssignmentUpdate(broker_name=B, group="g", version=9, is_whole=True))
    observer.tables.take(late)
    assert observer.tables.assignments("g") == {}


def ask_all(cluster: Cluster, who: Iterable[str]) -> None:
    for _ in range(3):
        cluster.ask(*who)
        cluster.now_ms += REST_MS


@given(
    st.lists(st.tuples(st.sampled_from("jlaatmd"), st.integers(0, 3)), max_size=40),
    st.integers(1, 4),
)
def test_no_queue_has_two_members_whichever_broker_coordinates(steps, count):
    """Joins, leaves, queries, time, moves to the other broker and its death come in any order."""
    cluster = Cluster(count)
    for step, number in steps:
        who = f"c{number}"
        if step == "j" and who not in cluster.topics:
            cluster.join(who)
        elif step == "l" and who in cluster.topics:
            cluster.leave(who)
        elif step == "a" and who in cluster.topics:
            cluster.ask(who)
        elif step == "t":
            cluster.now_ms += 60
        elif step in "md":
            cluster.move(B if cluster.coordinator == A else A, is_dead=step == "d")
        assert len(cluster.held()) == len(set(cluster.held())), cluster.holds
    if cluster.topics:
        ask_all(cluster, list(cluster.topics))
        assert cluster.held() == cluster.queues["T"]
        assert cluster.loads()[-1] - cluster.loads()[0] <= 1


class SlowCluster(Cluster):
    """A cluster whose coordinator computes each target on a thread, when `compute` lets it."""

    def __init__(self) -> None:
        self.works: list[tuple[str, TargetWork]] = []
        super().__init__()

    def new_broker(self, name: str) -> ServerAssignedGroups:
        return ServerAssignedGroups(
            name,
            members=lambda _: self.members(),
            queues=self.queues.get,
            compute=lambda group, work: self.works.append((group, work)),
        )

    def compute(self) -> None:
        works, self.works = self.works, []
        for group, work in works:
            coordinator = self.brokers[self.coordinator]
            self.say(coordinator.computed(group, work, work.compute(), now_ms=self.now_ms))
            self.say(coordinator.review(group, now_ms=self.now_ms))

    def settle(self) -> None:
        for _ in range(20):
            self.compute()
            self.now_ms += LARGE_GROUP_PAUSE_MS
            self.ask(*self.topics)
        assert not self.works


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowCluster:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 0)
    return SlowCluster()


def test_members_keep_their_queues_while_a_thread_computes_the_target(slow: SlowCluster):
    slow.join("a", "b")
    slow.ask("a", "b")
    assert len(slow.works) == 1
    assert slow.held() == []
    slow.compute()
    assert slow.again.keys() == {"a", "b"}
    slow.ask_until_quiet()
    assert slow.loads() == [4, 4]
    slow.join("c")
    slow.ask("a", "b", "c")
    assert (len(slow.works), slow.loads()) == (1, [0, 4, 4])
    slow.settle()
    assert slow.loads() == [2, 3, 3]
    assert slow.held() == slow.queues["T"]


def test_who_comes_and_goes_meanwhile_counts_with_the_next_target(slow: SlowCluster):
    slow.join("a", "b")
    slow.ask("a", "b")
    slow.settle()
    slow.join("c")
    slow.leave("a")
    slow.join("d")
    slow.ask("b", "c", "d")
    slow.settle()
    assert slow.loads() == [2, 3, 3]
    assert slow.held() == slow.queues["T"]


def test_a_target_that_nobody_awaits_any_more_is_ignored(slow: SlowCluster):
    slow.join("a", "b")
    slow.ask("a")
    ((group, work),) = slow.works
    slow.brokers[A].leave(group)
    assert slow.brokers[A].computed(group, work, work.compute(), now_ms=slow.now_ms) is None
    slow.ask("a")
    assert slow.brokers[A].computed(group, work, work.compute(), now_ms=slow.now_ms) is None
    slow.settle()
    assert slow.loads() == [4, 4]


def test_where_the_computation_fails_all_keep_what_they_have(slow: SlowCluster, caplog):
    slow.join("a", "b")
    slow.ask("a", "b")
    slow.settle()
    slow.leave("b")
    ((group, work),) = slow.works
    slow.works.clear()
    slow.say(slow.brokers[A].computed(group, work, MemoryError("no more"), now_ms=slow.now_ms))
    assert "queues could not be assigned" in caplog.text
    slow.ask("a")
    assert slow.loads() == [4]
    slow.change()
    slow.settle()
    assert slow.loads() == [8]


@given(st.lists(st.sampled_from(["join", "leave", "ask", "compute", "wait"]), max_size=30))
def test_whatever_happens_each_queue_is_given_to_one_member(steps: list[str]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 0)
        cluster = SlowCluster()
        for number, step in enumerate(steps):
            match step:
                case "join":
                    cluster.join(f"c{number}")
                case "leave" if cluster.topics:
                    cluster.leave(next(iter(cluster.topics)))
                case "ask":
                    cluster.ask(*cluster.topics)
                case "compute":
                    cluster.compute()
                case "wait":
                    cluster.now_ms += REST_MS
            assert len(cluster.held()) == len(set(cluster.held()))
        if cluster.topics:
            cluster.settle()
            assert cluster.held() == cluster.queues["T"]
            assert max(cluster.loads()) - min(cluster.loads()) <= 1
