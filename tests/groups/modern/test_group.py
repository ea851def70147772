"""A modern group (KIP-848), heartbeat by heartbeat: epochs, revocations, fences."""

import random
from typing import Any

import msgspec
import pytest

from libramq.clock import MonotonicMs
from libramq.groups import limits as group_limits
from libramq.groups.modern import group as limits
from libramq.groups.modern import subscribed_topics
from libramq.groups.modern.assignors import AssignorWork
from libramq.groups.modern.group import COLLECT_MS, INITIAL_DELAY_MS, ModernGroup
from libramq.groups.modern.member import SESSION_MS
from libramq.groups.modern.saved_state import (
    SavedEntry,
    member_key,
    members_of,
    restored,
    saved_group,
    saved_member,
)
from libramq.groups.modern.subscribed_topics import NAME_BYTES, TOPICS_LOOK_MS
from libramq.groups.modern.values import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    NO_PARTITIONS,
    Heartbeat,
    HeartbeatAnswer,
    Partition,
    Partitions,
)
from libramq.groups.protocol_groups import Refusal
from libramq.groups.rebalance_event import Reason
from tests.quick import quick

REBALANCE_MS = 60_000
#: How often the next step of a history finishes a large assignment.
FINISHES = 0.2


def of(*indexes: int, topic: str = "T") -> Partitions:
    return frozenset(Partition(topic, index) for index in indexes)


class World:
    """A group, its time, and its members' knowledge and partitions."""

    def __init__(self, **counts: int) -> None:
        self.group = ModernGroup()
        self.now_ms = MonotonicMs(1_000)
        self.counts = counts or {"T": 4}
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, Partitions] = {}
        self.entries: dict[str, SavedEntry] = {}
        self.work: AssignorWork | None = None
        #: Whether large assignments take until `finish_work`.
        self.is_slow = False

    def count_of(self, topic: str) -> int:
        return self.counts.get(topic, 0)

    def beat(self, member_id: str, epoch: int | None = None, **fields: Any) -> Refusal:
        known = self.epochs.get(member_id, JOINS)
        beat = Heartbeat(member_id, known if epoch is None else epoch, **fields)
        return self.group.beat(beat, self.count_of, self.now_ms)

    def join(self, member_id: str, *topics: str, **fields: Any) -> Refusal:
        fields = {"rebalance_ms": REBALANCE_MS, "owned": NO_PARTITIONS, "is_full": True} | fields
        self.owned[member_id] = NO_PARTITIONS
        self.epochs[member_id] = JOINS
        return self.beat(member_id, JOINS, topics=frozenset(topics or ("T",)), **fields)

    def hear(self, member_id: str) -> HeartbeatAnswer | None:
        """Answer a member's heartbeat if there is news."""
        if member_id not in self.group.members or not self.group.has_news(member_id):
            return None
        answer = self.group.answer(member_id, self.now_ms)
        self.epochs[member_id] = answer.epoch
        if answer.assigned is not None:
            self.owned[member_id] = answer.assigned
        return answer

    def advance(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (due_ms := self.group.next_due_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.group.tick(self.now_ms)
            self.take_work()
        self.now_ms = end_ms

    def take_work(self) -> None:
        self.work = self.group.take_work() or self.work
        if not self.is_slow:
            self.finish_work()

    def finish_work(self) -> None:
        if self.work is not None:
            work, self.work = self.work, None
            self.group.assigned(work, work.made(), self.now_ms)

    def round(self, *member_ids: str) -> None:
        """Let members report their partitions and receive the answers."""
        for member_id in member_ids or list(self.group.members):
            if self.epochs.get(member_id, JOINS) != JOINS:  # Otherwise its join is held.
                assert self.beat(member_id, owned=self.owned[member_id]) is Refusal.NONE
            self.hear(member_id)

    def stable(self, *member_ids: str, **fields: Any) -> None:
        """Bring a group with these members to rest."""
        for member_id in member_ids:
            assert self.join(member_id, **fields) is Refusal.NONE
        self.settle()
        assert sorted(self.group.members) == sorted(member_ids)

    def restart(self) -> None:
        """Kill and restart the process: recorded state is restored."""
        self.record()
        entries = {
            key: msgspec.json.decode(msgspec.json.encode(entry), type=SavedEntry)
            for key, entry in self.entries.items()
        }
        saved = entries["G"].group
        assert saved is not None
        group = restored(saved, members_of(entries).get("G", {}), self.now_ms)
        assert group.epoch > self.group.epoch, "no epoch is used twice"
        self.group, self.work = group, None
        self.take_work()

    def record(self) -> None:
        """Record the group and its changed members."""
        self.entries["G"] = saved_group(self.group)
        for member_id in self.group.touched:
            entry = saved_member(self.group, member_id)
            if entry is None:
                self.entries.pop(member_key("G", member_id), None)
            else:
                self.entries[member_key("G", member_id)] = entry
        self.group.touched.clear()
        for member_id in self.group.members:
            assert self.entries[member_key("G", member_id)] == saved_member(self.group, member_id)

    def settle(self) -> None:
        self.advance(INITIAL_DELAY_MS)
        self.is_slow = False
        self.take_work()
        self.advance(COLLECT_MS)  # Changes in the meantime.
        for member_id in list(self.group.members):
            self.hear(member_id)
        for _ in range(4):
            self.round()
        assert self.group.is_settled
        assert self.group.state in ("Stable", "Empty")


@pytest.fixture
def world() -> World:
    return World()


def test_members_that_start_together_get_their_shares_at_once(world: World):
    world.join("a")
    world.join("b")
    assert world.hear("a") is None, "its assignment is computed in a moment"
    world.advance(INITIAL_DELAY_MS)
    first, second = world.hear("a"), world.hear("b")
    assert first is not None
    assert second is not None
    assert (first.epoch, second.epoch) == (1, 1)
    assert [len(each.assigned or ()) for each in (first, second)] == [2, 2]
    assert world.owned["a"] | world.owned["b"] == of(0, 1, 2, 3)
    assert world.hear("a") is None, "it knows"


def test_a_partition_is_revoked_before_another_member_gets_it(world: World):
    world.stable("a")
    assert world.owned["a"] == of(0, 1, 2, 3)
    world.join("b")
    world.advance(COLLECT_MS)
    told = world.hear("a")
    assert told is not None
    assert told.assigned is not None
    assert (told.epoch, len(told.assigned)) == (1, 2), "the epoch rises when it has revoked"
    assert world.hear("b") is None, "its join is held for a while"
    assert world.group.answer("b", world.now_ms) == HeartbeatAnswer("b", 2, NO_PARTITIONS)
    assert world.group.is_moving("a")
    assert world.group.is_moving("b")
    assert world.group.state == "Reconciling"
    assert world.beat("a") is Refusal.NONE  # It does not report its partitions: it is revoking.
    assert world.hear("b") is None
    assert world.beat("a", owned=told.assigned) is Refusal.NONE
    assert world.hear("b") == HeartbeatAnswer("b", 2, of(0, 1, 2, 3) - told.assigned)
    assert world.hear("a") == HeartbeatAnswer("a", 2)
    assert world.group.state == "Stable"


def test_who_does_not_revoke_in_its_rebalance_timeout_is_removed(world: World):
    world.stable("a")
    world.join("b")
    world.advance(COLLECT_MS)
    world.hear("a")
    world.hear("b")
    for _ in range(4):
        world.advance(REBALANCE_MS // 4)
        for member_id in ("a", "b"):
            world.beat(member_id)
    assert list(world.group.members) == ["b"]
    world.settle()
    assert world.owned["b"] == of(0, 1, 2, 3)
    assert Reason.PROCESSING_TIMEOUT in {each.reason for each in world.group.changes}


def test_a_member_that_leaves_frees_its_partitions(world: World):
    world.stable("a", "b")
    assert world.group.leave(Heartbeat("a", LEAVES), world.now_ms) is Refusal.NONE
    world.advance(COLLECT_MS)
    answer = world.hear("b")
    assert answer is not None
    assert answer.assigned == of(0, 1, 2, 3)
    assert world.beat("a") is Refusal.UNKNOWN_MEMBER


def test_a_silent_member_is_removed_when_its_session_ends(world: World):
    world.stable("a", "b")
    world.advance(SESSION_MS // 2)
    world.round("b")
    world.advance(SESSION_MS // 2)
    assert list(world.group.members) == ["b"]
    assert world.group.changes[-1] == (Reason.SESSION_EXPIRED, "a")


def test_a_lost_member_is_removed_after_the_grace_unless_it_returns(world: World):
    world.stable("a", "b")
    assert world.group.lost("a", world.now_ms + 150)
    world.group.returned("a", world.now_ms)
    world.advance(1_000)
    assert len(world.group.members) == 2
    world.group.lost("a", world.now_ms + 150)
    world.advance(150)
    assert list(world.group.members) == ["b"]
    assert world.group.changes[-1] == (Reason.CONNECTION_CLOSED, "a")


def test_stale_and_future_epochs_are_fenced(world: World):
    world.stable("a")
    for name in ("b", "c"):  # Each raises the epoch.
        world.join(name)
        world.settle()
    epoch = world.epochs["a"]
    assert epoch == 3
    assert world.beat("a", epoch + 1) is Refusal.FENCED_EPOCH
    assert world.beat("a", epoch - 2, owned=NO_PARTITIONS) is Refusal.FENCED_EPOCH
    # The answer with the last epoch may have been lost.
    assert world.beat("a", epoch - 1) is Refusal.FENCED_EPOCH
    assert world.beat("a", epoch - 1, owned=of(0, 1, 2, 3)) is Refusal.FENCED_EPOCH
    assert world.beat("a", epoch - 1, owned=world.owned["a"]) is Refusal.NONE
    assert world.hear("a") == HeartbeatAnswer("a", epoch, world.owned["a"]), "the assignment is sent again"


def test_a_member_that_reports_other_partitions_is_sent_its_own_again(world: World):
    """librdkafka gave up the answer to a held heartbeat, and its next one did not ask for everything."""
    world.stable("a")
    world.join("b")
    world.advance(COLLECT_MS)
    lost = world.group.answer("a", world.now_ms)
    assert world.beat("a", owned=of(0, 1, 2, 3)) is Refusal.NONE
    assert world.hear("a") == lost


def test_a_fenced_member_joins_again_with_its_id(world: World):
    world.stable("a", "b")
    shares = dict(world.owned)
    assert world.join("a") is Refusal.NONE
    assert world.hear("a") == HeartbeatAnswer("a", 1, shares["a"])
    assert world.group.epoch == 1, "nothing has to move"


def test_a_member_that_joins_again_revokes_nothing_for_one_that_joins_with_it(world: World):
    world.stable("a")
    world.join("b")
    world.join("a")
    world.advance(COLLECT_MS)
    first, second = world.hear("a"), world.hear("b")
    assert (first, second) == (
        HeartbeatAnswer("a", 2, world.owned["a"]),
        HeartbeatAnswer("b", 2, world.owned["b"]),
    )
    assert sorted(world.owned["a"] | world.owned["b"]) == sorted(of(0, 1, 2, 3))
    assert world.group.is_settled, "it has reported that it has no partitions"


def test_a_static_member_that_leaves_for_a_while_keeps_its_partitions(world: World):
    world.stable("a")
    world.join("b", instance_id="i")
    world.settle()
    kept, epoch = world.owned["b"], world.group.epoch
    assert world.group.leave(Heartbeat("b", LEAVES_FOR_A_WHILE, "i"), world.now_ms) is Refusal.NONE
    world.advance(SESSION_MS // 2)
    world.round("a")
    assert world.join("again", instance_id="i") is Refusal.NONE
    assert world.hear("again") == HeartbeatAnswer("again", epoch, kept)
    assert world.hear("a") is None
    assert world.group.epoch == epoch
    assert world.beat("b", epoch, instance_id="i") is Refusal.FENCED_INSTANCE
    assert world.beat("b", epoch, instance_id="other") is Refusal.UNKNOWN_MEMBER


def test_a_static_member_that_does_not_return_is_removed(world: World):
    world.stable("a")
    world.join("b", instance_id="i")
    world.settle()
    world.group.leave(Heartbeat("b", LEAVES_FOR_A_WHILE, "i"), world.now_ms)
    world.advance(SESSION_MS - 1)
    world.round("a")
    world.advance(1)
    assert list(world.group.members) == ["a"]
    world.settle()
    assert world.owned["a"] == of(0, 1, 2, 3)


def test_an_instance_is_not_taken_from_a_member_that_is_there(world: World):
    world.stable("a", instance_id="i")
    assert world.join("b", instance_id="i") is Refusal.UNRELEASED_INSTANCE
    assert not world.group.lost("a", world.now_ms + 150), "it has its whole session"
    world.advance(1_000)
    assert list(world.group.members) == ["a"]
    assert world.join("b", instance_id="i") is Refusal.NONE, "the connection of the first one has ended"
    assert world.hear("b") == HeartbeatAnswer("b", 1, of(0, 1, 2, 3))


def test_a_subscription_moves_only_what_it_concerns():
    world = World(T=4, U=2)
    world.stable("a", "b")
    before = dict(world.owned)
    assert world.beat("a", topics=frozenset({"T", "U"})) is Refusal.NONE
    world.settle()
    assert world.owned["a"] | world.owned["b"] == of(0, 1, 2, 3) | of(0, 1, topic="U")
    assert of(0, 1, topic="U") <= world.owned["a"]
    assert len(world.owned["b"] - before["b"]) <= 1
    assert world.group.changes[-1] == (Reason.SUBSCRIPTION_CHANGED, "a")


def test_partitions_that_are_added_and_topics_that_are_made_are_noticed(world: World):
    world.stable("a", "b")
    world.counts["T"] = 6
    world.round()
    assert world.group.is_settled, "the topics were looked at a moment ago"
    world.advance(TOPICS_LOOK_MS)
    world.round()
    world.settle()
    assert [len(world.owned[each]) for each in ("a", "b")] == [3, 3]
    assert world.join("c", "later") is Refusal.NONE
    world.settle()
    assert world.owned["c"] == NO_PARTITIONS
    world.counts["later"] = 1
    world.advance(TOPICS_LOOK_MS)
    world.round()
    world.settle()
    assert world.owned["c"] == of(0, topic="later")


def test_members_vote_for_the_assignor(world: World):
    world.stable("b", "a", assignor="range")
    assert world.owned == {"a": of(0, 1), "b": of(2, 3)}
    assert world.group.assignor == "range"
    for member_id in ("a", "b"):
        world.beat(member_id, assignor="uniform")
    world.settle()
    assert world.group.assignor == "uniform"


def test_offsets_belong_to_members_in_their_epochs(world: World):
    assert world.group.may_use_offsets("", -1) is Refusal.NONE
    assert world.group.may_use_offsets("x", -1) is Refusal.NONE, "it chooses its partitions, and never joins"
    world.stable("a")
    for name in ("b", "c"):
        world.join(name)
        world.settle()
    assert world.group.may_use_offsets("", -1) is Refusal.UNKNOWN_MEMBER
    assert world.group.may_use_offsets("x", 1) is Refusal.UNKNOWN_MEMBER
    assert [world.group.may_use_offsets("a", epoch) for epoch in (1, 2, 3, 4)] == [
        Refusal.STALE_EPOCH, Refusal.NONE, Refusal.NONE, Refusal.STALE_EPOCH,
    ]  # fmt: skip


def test_a_group_has_a_limit(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MEMBERS_MAX", 2)
    world.stable("a", "b")
    assert world.join("c") is Refusal.GROUP_FULL
    assert world.join("a") is Refusal.NONE


def test_a_group_has_a_limit_of_partitions(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subscribed_topics, "PARTITIONS_MAX", 6)
    world.counts["U"] = 2
    world.stable("a")
    assert world.join("b", "T", "U", "unknown") is Refusal.GROUP_FULL
    assert world.beat("a", topics=frozenset({"U", "unknown"})) is Refusal.GROUP_FULL
    assert world.beat("a", topics=frozenset({"T", "U"})) is Refusal.NONE
    assert world.join("b", "U") is Refusal.NONE


def test_topics_that_grow_do_not_grow_a_group_beyond_its_limit(world: World, monkeypatch: pytest.MonkeyPatch):
    """A group of a thousand absent topics, created later, had four million partitions to assign."""
    monkeypatch.setattr(subscribed_topics, "PARTITIONS_MAX", 6)
    for member_id in ("a", "b"):
        world.join(member_id, "A", "T", "Z")
    world.settle()
    assert world.owned["a"] | world.owned["b"] == of(0, 1, 2, 3)
    world.counts |= {"A": 4_096, "T": 4_096, "Z": 4_096}
    for _ in range(2):
        world.advance(TOPICS_LOOK_MS)
        world.round()
        world.settle()
        assert world.owned["a"] | world.owned["b"] == of(0, 1, 2, 3) | of(0, 1, topic="A"), (
            "owned partitions stay"
        )
    world.counts["T"] = 1
    world.advance(TOPICS_LOOK_MS)
    world.round()
    world.settle()
    assert world.owned["a"] | world.owned["b"] == of(0) | of(0, 1, 2, 3, 4, topic="A")


@pytest.mark.parametrize("number", range(20))
def test_a_member_that_takes_an_instances_place_gets_its_partitions(world: World, number: int):
    """The hashes of the two former members' ids used to decide which one counted."""
    world.stable("a")
    world.join(f"first-{number}", instance_id="i")
    world.join(f"second-{number}")
    world.settle()
    kept = world.owned[f"first-{number}"]
    world.group.leave(Heartbeat(f"first-{number}", LEAVES_FOR_A_WHILE, "i"), world.now_ms)
    assert world.join(f"second-{number}", instance_id="i") is Refusal.NONE
    assert world.group.target[f"second-{number}"] == kept != NO_PARTITIONS


def test_a_large_assignment_is_made_elsewhere_and_nobody_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """A thousand members with different topics stopped a broker for seconds at each rebalance."""
    monkeypatch.setattr(group_limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 1)
    world.is_slow = True
    for member_id in ("a", "b"):
        world.join(member_id, instance_id=f"i{member_id}")
    world.advance(INITIAL_DELAY_MS)
    assert world.hear("a") is None
    assert world.group.state == "Assigning"
    answer = world.group.answer("a", world.now_ms)
    assert answer == HeartbeatAnswer("a", 1, NO_PARTITIONS), "its join has been held for long enough"
    world.epochs["a"] = 1
    world.group.leave(Heartbeat("b", LEAVES_FOR_A_WHILE, "ib"), world.now_ms)
    world.join("again", instance_id="ib")
    world.join("late")
    world.advance(SESSION_MS // 2)
    assert world.group.next_due_ms is not None
    assert world.group.next_due_ms > world.now_ms, "the next assignment waits for this one"
    world.finish_work()
    assert world.group.next_due_ms == world.now_ms, "it would look as if the process had stood still"
    told = world.hear("a")
    assert told is not None
    assert (told.epoch, len(told.assigned or ())) == (2, 2)
    assert len(world.group.target["again"]) == 2, "it has its instance's place"
    world.settle()
    assert world.epochs["late"] == 3
    assert sorted(len(each) for each in world.owned.values()) == [0, 1, 1, 2]


def test_a_pattern_is_compared_with_each_member_once(world: World):
    """A topic that fits the patterns of a thousand members took eight seconds."""
    compared: list[None] = []

    class Pattern(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(None)
            return str.__eq__(self, other)  # type: ignore[arg-type]

    for each in range(100):
        world.join(f"m{each}", pattern=Pattern(f"p{each}"))
        world.group.fit(f"p{each}", frozenset({"T"}), world.count_of, world.now_ms)
    compared.clear()
    world.group.fit("p0", frozenset({"U"}), world.count_of, world.now_ms)
    assert world.group.members["m0"].topics == {"T", "U"}
    assert len(compared) <= 300


def test_a_process_that_stood_still_blames_nobody(world: World):
    world.stable("a", "b")
    world.now_ms += 10 * SESSION_MS
    world.group.extend(9 * SESSION_MS, world.now_ms)
    world.group.tick(world.now_ms)
    assert len(world.group.members) == 2


def test_the_memory_of_a_group_is_that_of_its_members(world: World):
    empty = ModernGroup().cost_bytes
    world.stable("a", "b")
    cost = world.group.cost_bytes
    assert cost > empty
    world.beat("a", topics=frozenset({"T", "t" * 100}))
    assert world.group.cost_bytes == cost + 100 + NAME_BYTES
    for member_id in ("a", "b"):
        world.group.leave(Heartbeat(member_id, LEAVES), world.now_ms)
    assert world.group.is_unused
    assert world.group.cost_bytes <= empty + limits.PARTITION_BYTES * 4


@pytest.mark.parametrize("seed", quick(range(60), 15))
@pytest.mark.parametrize("is_large", [False, True])
def test_no_partition_has_two_owners_whatever_members_do(
    seed: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
):
    """Members join, leave, fall silent, lose answers and revoke late; in the end all partitions are read."""
    rng = random.Random(seed)
    world = World(T=rng.randrange(1, 9), U=3)
    if is_large:
        monkeypatch.setattr(group_limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 0)
        world.is_slow = True
    for step in range(300):
        members = list(world.group.members)
        action = rng.randrange(11)
        world.take_work()
        if rng.random() < FINISHES:
            world.finish_work()
        if action == 10:
            world.restart()
            for each in members:  # Static ones may be replaced while they are away.
                world.group.returned(each, world.now_ms)
        elif action == 0 or not members:
            instance = rng.choice((None, "i", "j"))
            if world.join(
                f"m{step}", *rng.sample(("T", "U"), rng.randrange(1, 3)), instance_id=instance
            ) is not (Refusal.NONE):
                del world.owned[f"m{step}"]
        elif action == 1:
            chosen = rng.choice(members)
            static = world.group.members[chosen].instance_id
            epoch = rng.choice((LEAVES, LEAVES_FOR_A_WHILE)) if static is not None else LEAVES
            world.group.leave(Heartbeat(chosen, epoch, static), world.now_ms)
            world.owned[chosen] = NO_PARTITIONS
        elif action == 2:
            world.advance(rng.choice((1, COLLECT_MS, INITIAL_DELAY_MS, SESSION_MS // 3)))
        elif action == 3:
            chosen = rng.choice(members)
            if world.group.has_news(chosen):
                world.group.answer(chosen, world.now_ms)  # The answer is lost.
        else:
            chosen = rng.choice(members)
            says = rng.choice((None, world.owned[chosen]))
            refusal = world.beat(chosen, owned=says, instance_id=world.group.members[chosen].instance_id)
            if refusal is Refusal.FENCED_EPOCH:
                world.owned[chosen] = NO_PARTITIONS
                world.epochs[chosen] = JOINS
                world.join(chosen, *world.group.members[chosen].topics)
            elif refusal is Refusal.NONE:
                world.hear(chosen)
        there = {each: world.owned[each] for each in world.group.members}
        assert sum(map(len, there.values())) == len(frozenset().union(*there.values())), f"{step}: {there}"
    for member in list(world.group.members.values()):
        world.group.remove(member.member_id, None, world.now_ms)
    world.join("x", "T", "U")
    world.join("y", "T", "U")
    world.settle()
    read = world.owned["x"] | world.owned["y"]
    assert len(read) == world.counts["T"] + 3


def test_a_member_that_another_coordinator_had_meanwhile_is_fenced():
    """Both may have counted from 1, so its epoch proves nothing: it would get partitions that others read."""
    world = World()
    world.stable("a", "b")
    had = world.owned["a"]
    world.restart()
    assert world.beat("a", owned=of(0, 1, 2, 3)) is Refusal.FENCED_EPOCH
    assert world.join("a") is Refusal.NONE
    world.round("b")
    world.settle()
    assert world.owned["a"] | world.owned["b"] == of(0, 1, 2, 3)
    assert not world.owned["a"] & world.owned["b"]
    assert len(world.owned["a"]) == len(had) == 2


def test_a_member_that_returns_after_a_restart_with_what_it_had_keeps_it():
    """After its first heartbeat it may briefly report more partitions, as between any two answers."""
    world = World()
    world.stable("a", "b")
    had = dict(world.owned)
    world.restart()
    world.round("a", "b")
    world.settle()
    assert world.owned == had
    assert world.beat("a", owned=of(0, 1, 2, 3)) is Refusal.NONE
