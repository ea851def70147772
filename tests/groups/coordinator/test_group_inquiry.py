"""The inquiry: a new coordinator's conclusions from the reports of fences and members."""

from libramq.fencing import Claim, FenceReport
from libramq.groups.coordinator.inquiry import GroupInquiry
from libramq.groups.coordinator.state import State
from libramq.message.queue import MessageQueue


def q(number: int) -> MessageQueue:
    return MessageQueue("T", "b", number)


def inquiry(*openings: tuple[int, str, int], epoch: int = 5) -> GroupInquiry:
    """Return an inquiry after one fence has reported (queue, member, epoch) for its open queues."""
    found = GroupInquiry(State.GATHERING, until_ms=1_000, epoch=0)
    opened = {q(number): Claim(member, opened_at) for number, member, opened_at in openings}
    found.gathered([FenceReport(epoch=epoch, openings=opened)], {}, now_ms=0)
    return found


def holders(found: GroupInquiry, **claims: dict[int, int]) -> dict[int, tuple[str, int]]:
    held = found.holdings(
        {member: {q(number): epoch for number, epoch in queues.items()} for member, queues in claims.items()}
    )
    return {queue.queue_id: (holding.member, holding.epoch) for queue, holding in held.items()}


def test_members_hold_the_queues_they_claim():
    """They may be open, granted but not opened yet, or forgotten by the fence, but not never granted."""
    found = inquiry((0, "x", 2), (1, "y", 3))
    assert holders(found, x={0: 2, 2: 5, 3: 6}, y={1: 3}) == {0: ("x", 2), 1: ("y", 3), 2: ("x", 5)}


def test_a_released_queue_is_free():
    """Its broker was away and is back, so the opening there is outdated."""
    assert holders(inquiry((0, "x", 2), (1, "x", 2)), x={1: 2}) == {1: ("x", 2)}


def test_a_queue_opened_by_another_member_since_is_not_the_claimants():
    """The queue has no holder at all if the other member does not claim it."""
    assert holders(inquiry((0, "y", 4), (1, "y", 1)), x={0: 2}, y={1: 1}) == {1: ("y", 1)}


def test_of_claims_unknown_to_fences_the_latest_counts():
    """A power cut may have taken the openings."""
    found = inquiry((0, "gone", 2))
    assert holders(found, x={0: 2}, y={0: 4}, z={0: 3}) == {0: ("y", 4)}


def test_a_queue_that_a_member_reads_is_not_taken_by_a_later_grant_that_its_fence_has_not_seen():
    """Another coordinator, cut off with a part of the cluster, granted it without querying this fence.

    The same is found after a power cut that took the opening of `y`, if `x` was stopped before its queue
    moved on; then `y` cannot read either.
    """
    found = inquiry((0, "x", 2))
    assert holders(found, x={0: 2}, y={0: 4}, z={0: 3}) == {0: ("x", 2)}
    assert holders(found, y={0: 4}, z={0: 3}, x={0: 2}) == {0: ("x", 2)}


def test_a_queue_opened_by_another_under_the_same_epoch_is_not_held():
    """Two coordinators granted it."""
    assert holders(inquiry((0, "x", 2)), y={0: 2}, x={0: 2}) == {0: ("x", 2)}
    assert holders(inquiry((0, "x", 2)), y={0: 2}, x={1: 2}) == {1: ("x", 2)}


def test_a_member_that_claims_nothing_keeps_its_recorded_queues():
    """A silent member keeps none."""
    found = inquiry((0, "x", 2), (1, "gone", 2))
    assert list(found.awaited) == ["x", "gone"]
    assert holders(found, x={}) == {0: ("x", 2)}


def test_a_member_that_joined_and_left_during_the_gathering_is_not_awaited():
    """The fences still know what it had open, and so may the previous coordinator."""
    found = GroupInquiry(State.GATHERING, until_ms=1_000, epoch=0)
    found.left("gone")
    fence = FenceReport(epoch=5, openings={q(0): Claim("gone", 5), q(1): Claim("x", 5)})
    found.gathered([fence], {}, now_ms=100)
    assert list(found.awaited) == ["x"]
    found.left("x")
    assert not found.awaited


def test_only_the_latest_members_are_awaited():
    """These are the last coordinator's members; those reported by an earlier one do not count."""
    openings = {q(number): Claim(member, 5) for number, member in enumerate(("x", "y", "left"))}
    fence = FenceReport(epoch=5, openings=openings)
    long_ago = FenceReport(epoch=4, members=["left"], members_epoch=4)
    last = FenceReport(epoch=5, members=["x", "y"], members_epoch=6)

    def awaited(*answers: FenceReport) -> tuple[list[str], int]:
        found = GroupInquiry(State.GATHERING, until_ms=1_000, epoch=0)
        found.gathered(answers, {"x": 2_000}, now_ms=100)
        return list(found.awaited), found.until_ms

    assert awaited(fence, long_ago, last) == (["y"], 2_100)
    assert awaited(fence, long_ago) == (["y", "left"], 2_100)
    assert awaited(fence) == (["y", "left"], 2_100)


def test_members_of_all_coordinators_of_one_epoch_are_awaited():
    """Brokers that started together each coordinated the group before they saw each other."""
    found = GroupInquiry(State.GATHERING, until_ms=1_000, epoch=0)
    theirs = {q(1): Claim("y", 2), q(2): Claim("z", 2)}
    answers = [
        FenceReport(epoch=2, openings={q(0): Claim("x", 2)}, members=["x"], members_epoch=2),
        FenceReport(epoch=2, openings=theirs, members=["y"], members_epoch=2),
    ]
    found.gathered(answers, {"x": 10_000}, now_ms=0)
    assert list(found.awaited) == ["y"]


def test_members_of_a_coordinator_with_a_lower_epoch_are_awaited_where_nobody_followed_it():
    """Brokers that started together count separately; live members lost queues for it (seed 3016462)."""
    found = GroupInquiry(State.GATHERING, until_ms=1_000, epoch=0)
    followed = {q(3): Claim("dead", 1)}
    answers = [
        FenceReport(
            epoch=1, openings={q(0): Claim("x", 1), q(1): Claim("y", 1)}, members=["x"], members_epoch=1
        ),
        FenceReport(epoch=2, openings={q(2): Claim("z", 2)}, members=["z"], members_epoch=2),
        FenceReport(epoch=2, openings=followed, members=["dead"], members_epoch=1),
    ]
    found.gathered(answers, {}, now_ms=0)
    assert list(found.awaited) == ["x", "z"]
