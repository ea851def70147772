"""The fence: a queue has one reader, whatever coordinators and members send and whenever the broker stops."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import BrokerError, Fenced, NotYetGranted
from libramq.fencing import EPOCHS_AHEAD_MAX, MODE_CLIENT, Claim, FenceGrant, FenceReport
from libramq.message.queue import MessageQueue
from libramq.offsets import fence
from libramq.offsets.fence import NOBODY, Fences, FencesFile, Opening, RemovedOpenings

Granted = tuple[MessageQueue, Claim]


def queue(queue_id: int, member: str, epoch: int, *, topic: str = "T", broker: str = "b") -> Granted:
    return MessageQueue(topic, broker, queue_id), Claim(member, epoch)


def word(epoch: int, *granted: Granted, **fields: object) -> FenceGrant:
    return FenceGrant(group="G", epoch=epoch, claims=dict(granted), **fields)  # type: ignore[arg-type]


def outcome(call: Callable[..., object], *arguments: object) -> object:
    """Return the result of a call, or the class of the error that refused it."""
    try:
        return call(*arguments)
    except BrokerError as error:
        return type(error)


class Book:
    """The changes that survive a restart, in the order in which the ledger records them."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, object]] = []
        self.is_full = False

    def record(self, name: str, opening: object) -> None:
        if self.is_full:
            raise OSError("no space left")
        self.lines.append((name, opening))

    def fences(self) -> Fences:
        fences = Fences("b", record=self.record)
        for name, opening in self.lines:
            fences.apply(name, opening)  # type: ignore[arg-type]
        return fences


def folded(fences: Fences) -> Fences:
    """Return the fences of a broker that reads only the file."""
    after = Fences("b")
    for name, opening in fences.file().openings.items():
        after.apply(name, opening)
    return after


def test_a_queue_is_opened_by_its_grantee_and_read_by_its_opener():
    fences = Fences("b")
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 3)) is NotYetGranted  # Nothing was heard yet.
    assert fences.grant(word(3, queue(0, "alice", 3), queue(1, "bob", 2))) == 3
    assert outcome(fences.check, "G", "T", 0, "alice", 3) is NotYetGranted  # Granted, not open.
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 2)) is Fenced
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 4)) is NotYetGranted
    assert outcome(fences.open, "G", "T", 0, Claim("bob", 3)) is Fenced
    assert fences.open("G", "T", 0, Claim("alice", 3)) == NOBODY
    assert fences.open("G", "T", 0, Claim("alice", 3)) is None
    fences.check("G", "T", 0, "alice", 3)
    for member, epoch, refusal in (
        ("alice", 2, Fenced),
        ("alice", None, Fenced),
        ("bob", 3, Fenced),
        ("bob", 4, NotYetGranted),
        (None, None, Fenced),
    ):
        assert outcome(fences.check, "G", "T", 0, member, epoch) is refusal


def test_the_owner_reads_until_the_next_owner_opens():
    fences = Fences("b")
    fences.grant(word(1, queue(0, "alice", 1)))
    fences.open("G", "T", 0, Claim("alice", 1))
    fences.grant(word(2, queue(0, "bob", 2)))
    fences.check("G", "T", 0, "alice", 1)
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 1)) is Fenced
    assert fences.open("G", "T", 0, Claim("bob", 2)) == Claim("alice", 1)
    assert outcome(fences.check, "G", "T", 0, "alice", 1) is Fenced
    fences.check("G", "T", 0, "bob", 2)


def test_a_grant_with_an_old_epoch_is_refused_and_changes_nothing():
    fences = Fences("b")
    fences.grant(word(9, queue(0, "alice", 9)))
    assert fences.grant(word(8, queue(0, "bob", 8), complete=True, mode=MODE_CLIENT)) == 9
    assert (fences.mode("G"), fences.epoch("G")) == ("epochs", 9)
    assert fences.open("G", "T", 0, Claim("alice", 9)) == NOBODY


@pytest.mark.parametrize("epoch", [5 + EPOCHS_AHEAD_MAX + 1, 2**63 - 1])
def test_the_highest_possible_epoch_is_refused_and_locks_no_group_out(epoch: int):
    """With 2^63 - 1 every later grant used to be outdated, for good."""
    fences = Fences("b")
    fences.grant(word(5, queue(0, "alice", 5)))
    for forged in (word(epoch), word(epoch, queue(0, "bob", 6)), word(6, queue(0, "bob", epoch))):
        with pytest.raises(BrokerError, match=f"epoch {epoch} of group G is implausible: 5 is the highest"):
            fences.grant(forged)
    assert fences.epoch("G") == 5
    assert fences.open("G", "T", 0, Claim("alice", 5)) == NOBODY
    assert fences.grant(word(6, queue(0, "alice", 6))) == 6


def test_a_fence_without_an_epoch_accepts_any_up_to_the_limit():
    assert Fences("b").grant(word(EPOCHS_AHEAD_MAX, queue(0, "alice", 7))) == EPOCHS_AHEAD_MAX


def test_of_two_coordinators_with_one_epoch_the_one_whose_member_opened_first_wins():
    """The other one learns that it must recover the state first, and nothing it sends is applied."""
    fences = Fences("b")
    fences.grant(word(9, queue(0, "alice", 9), queue(1, "alice", 9)))
    assert fences.open("G", "T", 0, Claim("alice", 9)) == NOBODY
    assert fences.grant(word(9, queue(1, "bob", 9), queue(0, "bob", 9), complete=True)) == 10
    assert outcome(fences.open, "G", "T", 0, Claim("bob", 9)) is Fenced
    fences.check("G", "T", 0, "alice", 9)
    assert fences.open("G", "T", 1, Claim("alice", 9)) == NOBODY
    assert fences.grant(word(11, queue(0, "alice", 9), queue(1, "bob", 11), complete=True)) == 11


def test_a_complete_grant_revokes_queues_it_does_not_name():
    fences = Fences("b")
    fences.grant(word(1, queue(0, "alice", 1), queue(1, "alice", 1), queue(2, "alice", 1, broker="other")))
    assert outcome(fences.open, "G", "T", 2, Claim("alice", 1)) is NotYetGranted  # Not all was said yet.
    fences.grant(word(2, queue(1, "alice", 1), complete=True))
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 1)) is Fenced
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 3)) is NotYetGranted
    assert fences.open("G", "T", 1, Claim("alice", 1)) == NOBODY


def test_commits_without_an_epoch_pass_where_members_allocate_for_themselves():
    fences = Fences("b")
    fences.check("G", "T", 0, None, None)
    fences.grant(word(1))
    assert outcome(fences.check, "G", "T", 0, None, None) is Fenced
    fences.grant(word(2, mode=MODE_CLIENT, complete=True))
    fences.check("G", "T", 0, None, None)
    assert outcome(fences.check, "G", "T", 0, "zombie", 1) is NotYetGranted


def test_openings_survive_a_restart_and_grants_are_repeated():
    book = Book()
    before = book.fences()
    before.grant(word(7, queue(0, "alice", 5), queue(1, "bob", 7)))
    before.open("G", "T", 0, Claim("alice", 5))
    after = book.fences()
    after.check("G", "T", 0, "alice", 5)
    assert after.open("G", "T", 0, Claim("alice", 5)) is None
    assert outcome(after.open, "G", "T", 1, Claim("bob", 7)) is NotYetGranted
    assert outcome(after.check, "G", "T", 0, None, None) is Fenced
    after.grant(word(7, queue(0, "alice", 5), queue(1, "bob", 7), complete=True))
    assert after.open("G", "T", 1, Claim("bob", 7)) == NOBODY


def test_a_restarted_fence_keeps_its_mode():
    """If its coordinator is unreachable, stock members would be fenced, and their messages redelivered."""
    book = Book()
    fences = book.fences()
    fences.grant(word(1, queue(0, "alice", 1), complete=True))
    fences.open("G", "T", 0, Claim("alice", 1))
    fences.grant(word(2, mode=MODE_CLIENT, complete=True))
    for one in (fences, book.fences(), folded(fences)):
        assert one.mode("G") == MODE_CLIENT
        assert one.epoch("G") == 2
        one.check("G", "T", 0, None, None)
        assert one.report("G").openings == dict([queue(0, "alice", 1)])
    fences.grant(word(3, queue(0, "alice", 3), complete=True))
    for one in (fences, book.fences(), folded(fences)):
        assert outcome(one.check, "G", "T", 0, None, None) is Fenced
    fences.grant(word(4, mode=MODE_CLIENT, complete=True))
    fences.remove_group("G")
    for one in (fences, book.fences(), folded(fences)):
        assert (one.mode("G"), one.epoch("G")) == (None, 4)


def test_groups_change_to_client_mode_although_the_disk_is_full():
    book = Book()
    fences = book.fences()
    fences.grant(word(1))
    book.is_full = True
    assert fences.grant(word(2, mode=MODE_CLIENT, complete=True)) == 2
    fences.check("G", "T", 0, None, None)
    assert folded(fences).mode("G") == MODE_CLIENT


def test_an_opening_that_cannot_be_journalled_is_refused():
    book = Book()
    fences = book.fences()
    fences.grant(word(1, queue(0, "alice", 1)))
    book.is_full = True
    with pytest.raises(OSError, match="no space"):
        fences.open("G", "T", 0, Claim("alice", 1))
    assert outcome(fences.check, "G", "T", 0, "alice", 1) is NotYetGranted
    book.is_full = False
    assert fences.open("G", "T", 0, Claim("alice", 1)) == NOBODY


def test_a_new_coordinator_learns_the_openings_and_voids_unused_grants():
    fences = Fences("b")
    assert fences.report("G") == FenceReport()
    fences.grant(word(7, queue(0, "alice", 5), queue(1, "bob", 7), complete=True))
    fences.open("G", "T", 0, Claim("alice", 5))
    assert fences.report("G") == FenceReport(epoch=7, openings=dict([queue(0, "alice", 5)]))
    assert outcome(fences.open, "G", "T", 1, Claim("bob", 7)) is NotYetGranted
    fences.check("G", "T", 0, "alice", 5)


def test_a_queue_whose_grant_is_void_is_not_taken_for_open_to_its_last_reader():
    """Rebalances used to settle with a member that never came, although another had opened the queue last."""
    fences = Fences("b")
    fences.grant(word(1, queue(0, "alice", 1), complete=True))
    fences.open("G", "T", 0, Claim("alice", 1))
    fences.grant(word(2, queue(0, "bob", 2), queue(1, "bob", 2)))
    both = [MessageQueue("T", "b", queue_id) for queue_id in (0, 1)]
    assert fences.openings("G") == dict.fromkeys(both, False)
    fences.report("G")
    assert fences.openings("G") == dict.fromkeys(both, False)
    fences.grant(word(3, queue(0, "alice", 1)))
    assert fences.openings("G") == {both[0]: True, both[1]: False}
    fences.grant(word(3, queue(0, "alice", 1), complete=True))
    assert fences.openings("G") == {both[0]: True}


def test_deleted_topics_and_groups_are_removed_from_the_disk():
    book = Book()
    fences = book.fences()
    fences.grant(word(1, queue(0, "alice", 1), queue(0, "alice", 1, topic="U")))
    fences.open("G", "T", 0, Claim("alice", 1))
    fences.open("G", "U", 0, Claim("alice", 1))
    fences.remove_topic("T")
    assert outcome(fences.check, "G", "T", 0, "alice", 1) is NotYetGranted
    assert list(book.fences().file().openings) == ["U@G@0", "@G@-1"] == list(fences.file().openings)
    fences.remove_group("G")
    assert "G" not in fences
    assert book.fences().file() == FencesFile(openings={"@G@-1": Opening(member="", epoch=1)})


@pytest.mark.parametrize("removal", ["topic", "group"])
def test_a_deleted_group_leaves_its_epoch_behind(removal: str):
    """The epoch survives restarts.

    The next coordinator learns it, as members know grants up to that epoch.
    """
    book = Book()
    fences = book.fences()
    fences.grant(word(7, queue(0, "alice", 5), complete=True))
    fences.open("G", "T", 0, Claim("alice", 5))
    if removal == "topic":
        fences.remove_topic("T")
    else:
        fences.remove_group("G")
    for one in (fences, book.fences()):
        assert one.epoch("G") == 7
        assert one.report("G") == FenceReport(epoch=7)
        assert one.grant(word(6, queue(0, "bob", 6))) == 7
        one.grant(word(8, queue(0, "bob", 8), complete=True))
        assert one.open("G", "T", 0, Claim("bob", 8)) == NOBODY


@pytest.mark.parametrize("removal", ["topic", "group"])
def test_only_the_last_reader_of_a_deleted_queue_may_open_it_again(removal: str):
    """Alice was frozen while Bob had her queue, and its next coordinator believed her (seed 8310205)."""
    fences = Fences("b")
    for member, epoch in (("alice", 1), ("bob", 3)):
        fences.grant(word(epoch, queue(0, member, epoch), complete=True))
        fences.open("G", "T", 0, Claim(member, epoch))
    if removal == "topic":
        fences.remove_topic("T")
    else:
        fences.remove_group("G")
    assert fences.grant(word(4, queue(0, "alice", 1), complete=True)) == 4
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 1)) is Fenced
    fences.grant(word(5, queue(0, "bob", 3), complete=True))
    assert outcome(fences.open, "G", "T", 0, Claim("bob", 3)) == (Fenced if removal == "topic" else NOBODY)
    fences.grant(word(6, queue(0, "alice", 6), complete=True))
    former = NOBODY if removal == "topic" else Claim("bob", 3)
    assert fences.open("G", "T", 0, Claim("alice", 6)) == former


def test_removed_openings_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fence, "OPENINGS_MAX", 2)
    removed = RemovedOpenings()
    for epoch in (1, 2, 3):
        removed.keep("G", {("T", epoch): Claim("alice", epoch)})
    assert [removed.last("G", ("T", epoch)).epoch for epoch in (1, 2, 3)] == [0, 2, 3]


def test_a_queue_closed_by_an_operator_needs_a_later_epoch():
    """A coordinator may still grant it to its former owner; the fence refuses that, also after a restart."""
    book = Book()
    fences = book.fences()
    fences.grant(word(7, queue(0, "alice", 5), queue(1, "alice", 7), complete=True))
    fences.open("G", "T", 0, Claim("alice", 5))
    for queue_id in (0, 1, 2):
        fences.close("G", "T", queue_id)
    fences.close("H", "T", 0)
    for one in (fences, book.fences()):
        assert outcome(one.check, "G", "T", 0, "alice", 5) is Fenced
        assert one.readers("G") == {}
        assert one.grant(word(8, queue(0, "alice", 5), complete=True)) == 9
        assert one.report("G").openings == dict([queue(0, "", 5), queue(1, "", 7)])
        one.grant(word(9, queue(0, "alice", 9), queue(1, "bob", 9), complete=True))
        assert one.open("G", "T", 0, Claim("alice", 9)) == Claim("", 5)
        assert one.open("G", "T", 1, Claim("bob", 9)) == Claim("", 7)
    assert "H" not in fences


@pytest.mark.parametrize("is_known", [False, True])
def test_a_member_without_a_name_has_nothing_open(is_known: bool):
    """It passed as the owner of queues that nobody had opened, or that an operator had closed."""
    fences = Fences("b")
    epochs = [0]
    if is_known:
        fences.grant(word(1, queue(0, "a", 1), queue(1, "a", 1)))
        fences.open("G", "T", 0, Claim("a", 1))
        fences.close("G", "T", 0)
        epochs.append(1)
    for queue_id in (0, 1, 2):
        for epoch in epochs:
            assert outcome(fences.check, "G", "T", queue_id, "", epoch) in (Fenced, NotYetGranted)
            assert outcome(fences.open, "G", "T", queue_id, Claim("", epoch)) in (Fenced, NotYetGranted)


def test_the_fence_of_a_deleted_group_refuses_nobody():
    """Members that allocate queues themselves commit as if the group had never been coordinated."""
    fences = Fences("b")
    fences.grant(word(7, queue(0, "alice", 7)))
    fences.open("G", "T", 0, Claim("alice", 7))
    fences.remove_group("G")
    assert fences.mode("G") is None
    fences.check("G", "T", 0, None, None)


def test_epochs_of_deleted_groups_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fence, "LEFT_BEHIND_MAX", 2)
    book = Book()
    fences = book.fences()
    for number in range(4):
        fences.grant(FenceGrant(group=f"G{number}", epoch=1, claims=dict([queue(0, "alice", 1)])))
        fences.open(f"G{number}", "T", 0, Claim("alice", 1))
        fences.remove_group(f"G{number}")
    assert list(fences.file().openings) == ["@G2@-1", "@G3@-1"] == list(book.fences().file().openings)


def test_the_epoch_of_a_group_that_is_deleted_again_is_the_newest(monkeypatch: pytest.MonkeyPatch):
    """It kept the place of its first deletion, and was the next to be forgotten."""
    monkeypatch.setattr(fence, "LEFT_BEHIND_MAX", 2)
    fences = Book().fences()
    for group, epoch in (("G", 1), ("H", 1), ("G", 2), ("I", 1)):
        fences.grant(FenceGrant(group=group, epoch=epoch, claims=dict([queue(0, "alice", epoch)])))
        fences.open(group, "T", 0, Claim("alice", epoch))
        fences.remove_group(group)
    assert list(fences.file().openings) == ["@G@-1", "@I@-1"]


MEMBERS = ("alice", "bob")
EPOCHS = st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("grant"), EPOCHS, st.lists(st.tuples(st.sampled_from(MEMBERS), EPOCHS)), st.booleans()),
    st.tuples(st.just("open"), st.sampled_from(MEMBERS), EPOCHS),
    st.tuples(st.sampled_from(["restart", "gather", "fill", "empty"])),
)


@given(st.lists(STEPS, max_size=40))
def test_a_queue_has_one_reader_and_its_epoch_only_rises(steps: list[tuple[object, ...]]):
    book = Book()
    fences, opened = book.fences(), NOBODY
    for step in steps:
        match step:
            case ("grant", epoch, claims, complete):
                grants = [queue(0, *claim) for claim in claims]  # type: ignore[attr-defined]
                assert fences.grant(word(epoch, *grants, complete=complete)) >= epoch  # type: ignore[arg-type]
            case ("open", member, epoch):
                claim = Claim(member, epoch)  # type: ignore[arg-type]
                try:
                    former = fences.open("G", "T", 0, claim)
                except (BrokerError, OSError):
                    pass
                else:
                    assert former in (None, opened)
                    assert claim == opened if former is None else claim.epoch > opened.epoch
                    opened = claim
            case ("restart",):
                fences = book.fences()
            case ("gather",):
                fences.report("G")
            case (disk,):
                book.is_full = disk == "fill"
        readers = [
            Claim(member, epoch)
            for member in MEMBERS
            for epoch in range(1, 7)
            if outcome(fences.check, "G", "T", 0, member, epoch) is None
        ]
        assert readers == ([] if opened == NOBODY else [opened])


def test_an_opening_ahead_of_its_grant_must_be_repeated():
    """The coordinator sends the mode first, and the member may be faster than its grant."""
    fences = Fences("b")
    fences.grant(word(5, mode=MODE_CLIENT, complete=True))
    fences.grant(word(6))  # Under epochs again.
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 6)) is NotYetGranted
    assert outcome(fences.open, "G", "T", 0, Claim("alice", 5)) is Fenced
    fences.grant(word(6, queue(0, "alice", 6)))
    assert fences.open("G", "T", 0, Claim("alice", 6)) == NOBODY


def test_members_reopen_queues_of_a_log_that_may_have_lost_its_end():
    """They learn the group's current position; until then neither pulls nor commits are accepted."""
    fences = Fences("b")
    fences.grant(word(3, queue(0, "m", 3), queue(1, "n", 3), complete=True))
    for queue_id, member in ((0, "m"), (1, "n")):
        fences.open("G", "T", queue_id, Claim(member, 3))
    fences.doubt_openings(lambda topic, queue_id: 10 + queue_id)
    assert outcome(fences.check, "G", "T", 0, "m", 3) is NotYetGranted
    assert outcome(fences.check, "G", "T", 0, "n", 2) is Fenced
    assert outcome(fences.open, "G", "T", 0, Claim("n", 3)) is Fenced
    assert fences.open("G", "T", 0, Claim("m", 3)) is None
    assert fences.check("G", "T", 0, "m", 3) is None
    assert fences.recovered_end("G", "T", 0) == 10  # The answer may be lost, and the opening repeated.
    fences.grant(word(4, queue(1, "m", 4)))
    assert fences.open("G", "T", 1, Claim("m", 4)) == Claim("n", 3)
    assert fences.check("G", "T", 1, "m", 4) is None
    assert fences.recovered_end("G", "T", 1) == 11
    fences.grant(word(5, queue(1, "m", 5)))
    assert fences.open("G", "T", 1, Claim("m", 5)) == Claim("m", 4)
    assert fences.recovered_end("G", "T", 1) is None
