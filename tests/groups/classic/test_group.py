"""A classic group, request by request: which requests wait for others, and how each is answered."""

import random
from typing import Any

import pytest
from msgspec import json, structs

from libramq.formats.document import decode_body
from libramq.groups.classic import state as limits
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.classic.saved_state import (
    GENERATION_MAX,
    SavedClassicGroup,
    is_sound,
    restored,
    saved,
)
from libramq.groups.classic.state import (
    INITIAL_DELAY_MS,
    NEW_MEMBER_MS,
    NEXT,
    NEXT_REBALANCE_MS,
    SESSION_MS_MIN,
    Status,
)
from libramq.groups.classic.values import (
    Answer,
    Beat,
    JoinAnswer,
    JoinGroup,
    Leaving,
    Protocol,
    SyncAnswer,
    SyncGroup,
)
from libramq.groups.protocol_groups import Groups, Refusal
from tests.quick import quick

SESSION_MS, REBALANCE_MS = 10_000, 60_000
RANGE = Protocol("range", b"topics")


class World:
    """A group, its time, and the answers to its members."""

    def __init__(self) -> None:
        self.group = ClassicGroup()
        self.now_ms = 0
        self.answered: dict[str, Any] = {}
        self._keys = 0

    def take(self, answers: list[Answer]) -> None:
        for answer in answers:
            assert answer.key not in self.answered, "answered twice"
            self.answered[str(answer.key)] = answer

    def key(self, name: str) -> str:
        self._keys += 1
        return f"{name} {self._keys}"

    def join(self, name: str = "", member_id: str = "", **fields: Any) -> str:
        """Let a member join, and return the key of its request."""
        key = self.key(name or member_id)
        defaults: dict[str, Any] = {
            "instance_id": None,
            "fresh_id": f"{name}-id",
            "client_id": name,
            "session_ms": SESSION_MS,
            "rebalance_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": [RANGE],
            "must_come_back": False,
        }
        self.take(
            self.group.join(JoinGroup(key=key, member_id=member_id, **(defaults | fields)), self.now_ms)
        )
        return key

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> str:
        key = self.key(member_id)
        defaults: dict[str, Any] = {"instance_id": None, "generation": self.group.generation}
        request = SyncGroup(
            key=key, member_id=member_id, assignments=assignments or {}, **(defaults | fields)
        )
        self.take(self.group.sync(request, self.now_ms))
        return key

    def beat(self, member_id: str, generation: int | None = None) -> Refusal:
        beat = Beat(member_id, None, self.group.generation if generation is None else generation)
        return self.group.beat(beat, self.now_ms)

    def leave(self, *leaving: Leaving) -> list[Refusal]:
        refusals, answers = self.group.leave(leaving, self.now_ms)
        self.take(answers)
        return refusals

    def advance(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while (due_ms := self.group.next_due_ms) is not None and due_ms <= end_ms:
            assert due_ms > self.now_ms or self.group.next_due_ms is not None
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.group.tick(self.now_ms))
        self.now_ms = end_ms

    def stable(self, *names: str) -> None:
        """Let these members join and receive their shares; the first one leads."""
        keys = [self.join(name) for name in names]
        self.advance(2 * INITIAL_DELAY_MS)
        assert [self.joined(key).refusal for key in keys] == [Refusal.NONE] * len(names)
        self.sync_all(*names)

    def sync_all(self, *names: str) -> None:
        for name in names:
            self.sync(f"{name}-id", {f"{each}-id": each.encode() for each in names})
        assert self.group.status is Status.STABLE

    def joined(self, key: str) -> JoinAnswer:
        answer = self.answered[key]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, key: str) -> SyncAnswer:
        answer = self.answered[key]
        assert isinstance(answer, SyncAnswer)
        return answer

    def giving_up(self) -> tuple[str, str, str]:
        """Let a give up partitions while b and c get nothing new; return the keys of their syncs."""
        for name in "abc":
            self.join(name)
        self.advance(2 * INITIAL_DELAY_MS)
        b = self.sync("b-id")
        a = self.sync("a-id", {"a-id": b"less"}, waiting=("b-id", "c-id"))
        return a, b, self.sync("c-id")


@pytest.fixture
def world() -> World:
    return World()


def test_members_that_come_together_join_one_generation(world: World):
    first = world.join("a")
    world.advance(INITIAL_DELAY_MS - 1)
    second = world.join("b")
    world.advance(INITIAL_DELAY_MS - 1)
    assert world.answered == {}, "a member came: others may follow"
    world.advance(INITIAL_DELAY_MS)
    leader, follower = world.joined(first), world.joined(second)
    assert (leader.generation, follower.generation) == (1, 1)
    assert leader.leader == follower.leader == "a-id"
    assert [each.member_id for each in leader.members] == ["a-id", "b-id"]
    assert follower.members == ()
    assert (follower.protocol_type, follower.protocol_name) == ("consumer", "range")


def test_the_first_rebalance_does_not_wait_for_ever(world: World):
    for number in range(2 * REBALANCE_MS // INITIAL_DELAY_MS):
        world.join(f"m{number}", rebalance_ms=SESSION_MS)
        world.advance(INITIAL_DELAY_MS - 1)
        if world.answered:
            break
    assert world.now_ms <= SESSION_MS + INITIAL_DELAY_MS


def test_followers_get_their_shares_when_the_leader_has_assigned(world: World):
    world.join("a")
    world.join("b")
    world.advance(2 * INITIAL_DELAY_MS)
    follower = world.sync("b-id")
    assert follower not in world.answered
    leader = world.sync("a-id", {"b-id": b"theirs"})
    assert world.synced(follower).assignment == b"theirs"
    assert world.synced(leader).assignment == b"", "a member the leader omits has nothing"
    assert world.synced(world.sync("b-id")).assignment == b"theirs", "asked again, answered again"


def test_members_that_get_nothing_new_wait_for_those_that_give_something_up(world: World):
    """KIP-429: a joins again, and the others join with it instead of at their next heartbeats."""
    a, b, c = world.giving_up()
    assert world.synced(a).assignment == b"less"
    assert b not in world.answered
    assert c not in world.answered
    assert not world.group.has_synced
    rejoined = world.join(member_id="a-id")
    assert [world.synced(key).refusal for key in (b, c)] == [Refusal.REBALANCE_IN_PROGRESS] * 2
    world.join(member_id="b-id")
    world.join(member_id="c-id")
    assert world.joined(rejoined).generation == 2
    world.sync_all("a", "b", "c")
    assert world.group.has_synced


def test_a_member_that_hears_of_the_next_rebalance_elsewhere_does_not_wait(world: World):
    """One of librdkafka has a held heartbeat, and would not join for a second after an error."""
    for name in "ab":
        world.join(name)
    world.advance(2 * INITIAL_DELAY_MS)
    b = world.sync("b-id", may_wait=False)
    world.sync("a-id", {"a-id": b"less"}, waiting=("b-id",))
    assert world.synced(b).refusal is Refusal.NONE


def test_members_wait_no_longer_than_until_their_next_heartbeat(world: World):
    _, b, c = world.giving_up()
    world.advance(NEXT_REBALANCE_MS - 1)
    assert world.beat("a-id") is Refusal.NONE
    assert b not in world.answered
    assert c not in world.answered
    world.advance(1)
    assert [world.synced(key).refusal for key in (b, c)] == [Refusal.NONE] * 2
    assert world.group.has_synced
    assert world.synced(world.sync("c-id")).refusal is Refusal.NONE, "asked again, answered at once"


def test_a_session_begins_again_with_the_share(world: World):
    """The leader takes longer to assign than a session."""
    world.join("a")
    world.join("b", session_ms=SESSION_MS_MIN)
    world.advance(2 * INITIAL_DELAY_MS)
    world.sync("b-id")
    world.advance(SESSION_MS - 1)
    world.sync("a-id", {"b-id": b"theirs"})
    world.advance(SESSION_MS_MIN - 1)
    assert world.beat("b-id") is Refusal.NONE


def test_a_newcomer_rebalances_and_members_hear_of_it_at_their_heartbeat(world: World):
    world.stable("a", "b")
    assert world.beat("a-id") is Refusal.NONE
    newcomer = world.join("c")
    assert newcomer not in world.answered
    assert world.beat("a-id") is Refusal.REBALANCE_IN_PROGRESS
    world.join(member_id="a-id")
    assert newcomer not in world.answered
    last = world.join(member_id="b-id")
    assert world.joined(newcomer).generation == world.joined(last).generation == 2
    assert world.joined(newcomer).leader == "a-id", "a present leader stays the leader"
    assert world.beat("a-id", generation=1) is Refusal.ILLEGAL_GENERATION


def test_a_member_that_does_not_rejoin_in_time_is_removed(world: World):
    world.stable("a", "b")
    newcomer = world.join("c")
    rejoined = world.join(member_id="b-id")
    for _ in range(REBALANCE_MS // 5_000):
        world.advance(5_000)
        if "a-id" in world.group.members:
            world.beat("a-id")
    assert "a-id" not in world.group.members
    assert {world.joined(newcomer).leader, world.joined(rejoined).leader} == {"b-id"}
    assert world.beat("a-id") is Refusal.UNKNOWN_MEMBER
    world.sync_all("b", "c")


def test_a_silent_member_is_removed_at_the_end_of_its_session(world: World):
    world.stable("a", "b")
    world.advance(SESSION_MS // 2)
    world.beat("b-id")
    world.advance(SESSION_MS // 2)
    assert list(world.group.members) == ["b-id"]
    assert world.beat("b-id") is Refusal.REBALANCE_IN_PROGRESS
    again = world.join(member_id="b-id")
    assert world.joined(again).leader == "b-id"


def test_a_parked_member_is_not_silent(world: World):
    world.stable("a")
    waiting = world.join("b")
    for _ in range(5):
        world.advance(SESSION_MS - 1)
        world.beat("a-id")
    assert waiting not in world.answered
    world.join(member_id="a-id")
    assert world.joined(waiting).generation == 2


def test_a_new_member_waits_five_minutes_at_most(world: World):
    world.stable("a")
    waiting = world.join("b")
    world.group.members["a-id"].rebalance_ms = 2 * NEW_MEMBER_MS
    world.group._join_ends_ms = 2 * NEW_MEMBER_MS
    for _ in range(NEW_MEMBER_MS // 5_000 + 1):
        world.beat("a-id")
        world.advance(5_000)
    assert world.joined(waiting).refusal is Refusal.UNKNOWN_MEMBER


def test_a_member_that_never_syncs_is_removed_after_a_rebalance_timeout(world: World):
    world.join("a")
    world.join("b")
    world.advance(2 * INITIAL_DELAY_MS)
    world.sync("a-id", {"a-id": b"x"})
    for _ in range(REBALANCE_MS // 5_000):
        world.advance(5_000)
        for name in ("a-id", "b-id"):
            if name in world.group.members:
                world.beat(name)
    assert list(world.group.members) == ["a-id"]


def test_the_last_to_leave_leaves_an_empty_group(world: World):
    world.stable("a", "b")
    assert world.leave(Leaving("a-id")) == [Refusal.NONE]
    assert world.group.status is Status.PREPARING_REBALANCE
    assert world.leave(Leaving("b-id"), Leaving("b-id")) == [Refusal.NONE, Refusal.UNKNOWN_MEMBER]
    assert world.group.is_unused
    assert world.group.next_due_ms is None


def test_a_leave_completes_a_rebalance_that_waited_for_the_member(world: World):
    world.stable("a", "b")
    waiting = world.join(member_id="a-id")
    assert waiting not in world.answered
    world.leave(Leaving("b-id"))
    assert world.joined(waiting).generation == 2


def test_a_member_without_id_gets_one_and_joins_with_it(world: World):
    """KIP-394: an answer lost on its way to the client leaves no member behind."""
    refused = world.join("a", must_come_back=True)
    assert world.joined(refused) == JoinAnswer(refused, Refusal.MEMBER_ID_REQUIRED, "a-id")
    assert world.group.status is Status.EMPTY
    back = world.join(member_id="a-id")
    world.advance(2 * INITIAL_DELAY_MS)
    assert world.joined(back).member_id == "a-id"
    world.join("b", must_come_back=True)
    assert not world.group.is_unused
    world.advance(SESSION_MS)
    assert world.group.pending == {}


def test_a_rebalance_waits_for_an_id_that_was_given_out(world: World):
    world.stable("a")
    world.join("b", must_come_back=True)
    world.join("c")
    again = world.join(member_id="a-id")
    assert again not in world.answered
    world.join(member_id="b-id")
    assert {each.member_id for each in world.joined(again).members} == {"a-id", "b-id", "c-id"}


@pytest.mark.parametrize("member_id", ["nobody", "a"])
def test_an_unknown_id_is_refused_everywhere(world: World, member_id: str):
    world.stable("a")
    assert world.joined(world.join(member_id=member_id)).refusal is Refusal.UNKNOWN_MEMBER
    assert world.synced(world.sync(member_id)).refusal is Refusal.UNKNOWN_MEMBER
    assert world.beat(member_id) is Refusal.UNKNOWN_MEMBER
    assert world.leave(Leaving(member_id)) == [Refusal.UNKNOWN_MEMBER]


def test_a_follower_that_joins_again_is_answered_again_and_a_leader_rebalances(world: World):
    world.stable("a", "b")
    assert world.joined(world.join(member_id="b-id")).generation == 1
    assert world.group.status is Status.STABLE
    world.join(member_id="a-id")
    assert world.group.status is Status.PREPARING_REBALANCE


def test_a_changed_subscription_rebalances(world: World):
    world.stable("a", "b")
    world.join(member_id="b-id", protocols=[Protocol("range", b"other topics")])
    assert world.group.status is Status.PREPARING_REBALANCE


def test_a_lost_answer_to_a_join_is_repeated_while_the_leader_assigns(world: World):
    world.join("a")
    world.advance(2 * INITIAL_DELAY_MS)
    again = world.joined(world.join(member_id="a-id"))
    assert (again.generation, again.leader, len(again.members)) == (1, "a-id", 1)


def test_the_strategy_is_the_most_votes_among_those_that_all_know(world: World):
    sticky = Protocol("sticky", b"")
    world.join("a", protocols=[sticky, RANGE])
    world.join("b", protocols=[RANGE, sticky])
    last = world.join("c", protocols=[Protocol("own", b""), RANGE])
    assert world.group.status is Status.PREPARING_REBALANCE
    world.advance(3 * INITIAL_DELAY_MS)
    assert world.joined(last).protocol_name == "range"


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": [Protocol("other", b"")]},
        {"protocols": []},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ],
)
def test_a_member_without_a_common_strategy_is_refused(world: World, fields: dict[str, Any]):
    world.stable("a")
    assert world.joined(world.join("b", **fields)).refusal is Refusal.INCONSISTENT_PROTOCOL
    assert world.group.status is Status.STABLE


@pytest.mark.parametrize("session_ms", [limits.SESSION_MS_MIN - 1, limits.SESSION_MS_MAX + 1, 0, -1])
def test_a_session_out_of_bounds_is_refused(world: World, session_ms: int):
    assert world.joined(world.join("a", session_ms=session_ms)).refusal is Refusal.INVALID_SESSION_TIMEOUT


def test_a_full_group_is_refused(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("libramq.groups.classic.group.MEMBERS_MAX", 2)
    world.join("a")
    world.join("b", must_come_back=True)
    assert world.joined(world.join("c")).refusal is Refusal.GROUP_FULL


def test_a_protocol_that_is_another_is_refused_at_the_sync(world: World):
    world.stable("a")
    wrong = world.sync("a-id", protocol_type="consumer", protocol_name="sticky")
    assert world.synced(wrong).refusal is Refusal.INCONSISTENT_PROTOCOL
    right = world.sync("a-id", protocol_type="consumer", protocol_name="range")
    assert world.synced(right).refusal is Refusal.NONE


# Static members.


def static(world: World, name: str, fresh: str, **fields: Any) -> str:
    return world.join(name, instance_id=name, fresh_id=fresh, **fields)


def static_pair(world: World) -> None:
    static(world, "a", "a-1")
    static(world, "b", "b-1")
    world.advance(3 * INITIAL_DELAY_MS)
    world.sync("a-1", {"a-1": b"A", "b-1": b"B"}, instance_id="a")
    world.sync("b-1", instance_id="b")
    assert world.group.status is Status.STABLE


def test_a_static_member_returns_without_a_rebalance(world: World):
    static_pair(world)
    back = world.joined(static(world, "b", "b-2"))
    assert (back.refusal, back.generation, back.member_id) == (Refusal.NONE, 1, "b-2")
    assert world.group.status is Status.STABLE
    assert world.synced(world.sync("b-2", instance_id="b")).assignment == b"B"
    assert world.group.beat(Beat("b-1", "b", 1), world.now_ms) is Refusal.FENCED_INSTANCE
    assert world.joined(world.join(member_id="b-1", instance_id="b")).refusal is Refusal.FENCED_INSTANCE


@pytest.mark.parametrize("may_skip", [False, True])
def test_a_static_leader_returns_without_assigning(world: World, may_skip: bool):
    static_pair(world)
    back = world.joined(static(world, "a", "a-2", may_skip=may_skip))
    assert world.group.status is Status.STABLE
    if may_skip:  # KIP-814
        assert (back.leader, back.skip_assignment, len(back.members)) == ("a-2", True, 2)
    else:
        assert (back.leader, back.skip_assignment, len(back.members)) == ("a-1", False, 0)
    assert world.synced(world.sync("a-2", instance_id="a")).assignment == b"A"


def test_what_a_replaced_static_member_waits_for_is_fenced(world: World):
    first = static(world, "a", "a-1")
    static(world, "a", "a-2")
    assert world.joined(first).refusal is Refusal.FENCED_INSTANCE


def test_a_static_member_leaves_by_its_instance(world: World):
    static_pair(world)
    leaving = Leaving("", "b"), Leaving("", "nobody"), Leaving("wrong", "a")
    assert world.leave(*leaving) == [Refusal.NONE, Refusal.UNKNOWN_MEMBER, Refusal.FENCED_INSTANCE]
    assert list(world.group.members) == ["a-1"]


# Commits, and time.


def test_who_may_commit(world: World):
    nobody = Beat("", None, -1)
    assert world.group.may_commit(nobody, 0) is Refusal.NONE
    chooser = Beat("an id of librdkafka's", None, -1)
    assert world.group.may_commit(chooser, 0) is Refusal.NONE, "it chooses its partitions, and never joins"
    world.stable("a")
    commit = world.group.may_commit
    assert commit(chooser, world.now_ms) is Refusal.UNKNOWN_MEMBER
    assert commit(nobody, world.now_ms) is Refusal.UNKNOWN_MEMBER
    assert commit(Beat("a-id", None, 1), world.now_ms) is Refusal.NONE
    assert commit(Beat("a-id", None, 0), world.now_ms) is Refusal.ILLEGAL_GENERATION
    world.join("b")
    assert commit(Beat("a-id", None, 1), world.now_ms) is Refusal.NONE, "it may still commit them"
    world.join(member_id="a-id")
    assert commit(Beat("a-id", None, 2), world.now_ms) is Refusal.REBALANCE_IN_PROGRESS


def test_a_process_that_stood_still_blames_nobody(world: World):
    world.stable("a", "b")
    due_ms = world.group.next_due_ms
    assert due_ms is not None
    world.now_ms = due_ms + 50_000
    world.group.extend(50_000, world.now_ms)
    world.take(world.group.tick(world.now_ms))
    assert list(world.group.members) == ["a-id", "b-id"]


def test_groups_without_members_are_forgotten():
    groups: Groups[ClassicGroup] = Groups(ClassicGroup)
    group = groups.get_or_create("G")
    assert group is groups.get("G")
    assert groups.forget_unused("G")
    assert groups.get("G") is None


@pytest.mark.parametrize("seed", quick(range(60), 15))
def test_whatever_members_do_every_request_is_answered_once_and_others_can_use_the_group(seed: int):
    """Random members act first, then all are silent, then two follow the protocol."""
    rng = random.Random(seed)
    world = World()
    requests: set[str] = set()
    for step in range(120):
        ids = [*world.group.members, *world.group.pending, "nobody"]
        match rng.randrange(6):
            case 0:
                requests.add(world.join(f"m{step}", must_come_back=rng.random() < 0.5))
            case 1:
                instance = f"i{rng.randrange(3)}"
                requests.add(world.join(instance, instance_id=instance, fresh_id=f"{instance}-{step}"))
            case 2:
                requests.add(world.join(member_id=rng.choice(ids)))
            case 3:
                generation = world.group.generation - (rng.random() < 0.2)
                shares, waiting = {rng.choice(ids): b"x"}, rng.sample(ids, rng.randrange(len(ids)))
                requests.add(world.sync(rng.choice(ids), shares, generation=generation, waiting=waiting))
            case 4:
                world.beat(rng.choice(ids))
                world.leave(*[Leaving(rng.choice(ids))] * (rng.random() < 0.3))
            case 5:
                world.advance(rng.choice((10, 300, 3_000, 30_000)))
        check(world)
    world.advance(2 * (REBALANCE_MS + SESSION_MS) + NEW_MEMBER_MS)
    assert world.group.is_unused, "silent members are gone"
    assert requests <= set(world.answered)
    world.stable("x", "y")


def check(world: World) -> None:
    """Check the invariants."""
    group = world.group
    if group.status is Status.EMPTY:
        assert not group.members
    if group.status in (Status.STABLE, Status.COMPLETING_REBALANCE):
        assert group.members
        assert all(member.join_key is None for member in group.members.values())
    if group.status is Status.STABLE:
        parked = {member.member_id for member in group.members.values() if member.sync_key is not None}
        assert parked <= set(group._waiting)
    for instance, member_id in group._static.items():
        assert group.members[member_id].instance_id == instance
    assert group.status in NEXT
    assert group.is_unused == (group.next_due_ms is None)


def test_another_coordinator_continues_with_the_members_of_a_stable_group(world: World):
    """None of them has to rejoin there, and each keeps its partitions."""
    world.stable("a", "b")
    former = world.group.generation
    state = saved(world.group)
    assert state is not None
    world.group = restored(decode_body(json.encode(state), SavedClassicGroup), world.now_ms)
    assert (world.group.status, world.group.leader) == (Status.STABLE, "a-id")
    assert [world.beat(f"{name}-id", former) for name in "ab"] == [Refusal.NONE] * 2
    assert world.group.may_commit(Beat("b-id", None, former), world.now_ms) is Refusal.NONE
    assert world.synced(world.sync("b-id")).assignment == b"b"
    assert world.group.is_unused is False
    world.advance(SESSION_MS // 2)
    assert world.group.status is Status.STABLE


def test_generations_that_the_former_coordinator_had_begun_are_not_used_again(world: World):
    """Its leader may know of such a generation and submit that assignment."""
    world.stable("a")
    former = world.group.generation
    state = saved(world.group)
    assert state is not None
    world.group = restored(state, world.now_ms)
    key = world.join(member_id="a-id")
    assert world.joined(key).generation > former + 1
    assert world.synced(world.sync("a-id", generation=former + 1)).refusal is Refusal.ILLEGAL_GENERATION


def test_a_member_that_does_not_come_to_the_other_coordinator_is_given_up(world: World):
    world.stable("a", "b")
    state = saved(world.group)
    assert state is not None
    world.group = restored(state, world.now_ms)
    world.advance(SESSION_MS - 1)
    assert world.beat("a-id") is Refusal.NONE
    world.advance(1)
    assert world.beat("a-id") is Refusal.REBALANCE_IN_PROGRESS
    assert list(world.group.members) == ["a-id"]


def test_a_static_member_is_known_to_the_other_coordinator(world: World):
    world.join("a", instance_id="one")
    world.advance(2 * INITIAL_DELAY_MS)
    world.sync("a-id", {"a-id": b"share"}, instance_id="one")
    state = saved(world.group)
    assert state is not None
    world.group = restored(state, world.now_ms)
    key = world.join("c", instance_id="one")
    assert world.joined(key).generation == state.generation, "it is back in its own place"
    assert world.beat("a-id") is Refusal.UNKNOWN_MEMBER


def test_nothing_is_passed_on_while_members_join(world: World):
    world.stable("a", "b")
    world.join("c")
    assert saved(world.group) is None


@pytest.mark.parametrize(
    "change",
    [
        {"members": {}},
        {"generation": -1},
        {"generation": GENERATION_MAX + 1},
        {"leader": "stranger"},
        {"protocol_name": "another"},
    ],
)
def test_a_state_from_which_no_group_can_continue_is_found_out(world: World, change: dict[str, Any]):
    world.stable("a", "b")
    state = saved(world.group)
    assert state is not None
    assert is_sound(state)
    assert not is_sound(structs.replace(state, **change))
