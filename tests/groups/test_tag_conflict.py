"""Members of one group that subscribe to different messages of one topic."""

import pytest

from libramq.groups.tag_conflict import EXPRESSION_SHOWN_MAX, NAMED_MAX, tag_conflict


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"T": "*"}, {"T": "*"}),
        ({"T": "a || b"}, {"T": "b||a"}),
        ({"T": ""}, {"T": "*"}),
        ({"T": "a"}, {"U": "b"}),
        ({"T": "a", "U": "*"}, {"T": "a"}),
        ({"T": "*", "%RETRY%G": "*"}, {"T": "*", "%RETRY%G": "x"}),
    ],
    ids=["the same", "another order", "everything", "other topics", "one topic more", "retry topics"],
)
def test_filters_that_lose_nothing_do_not_conflict(one, other):
    assert tag_conflict([("alice", one), ("bob", other)]) == ""


def test_sql_expressions_are_compared_as_they_are():
    one, other = "SQL92: a = 'x || y'", "SQL92: a = 'x ||y'"
    assert tag_conflict([("alice", {"T": one}), ("bob", {"T": one})]) == ""
    assert f"bob wants '{other}'" in tag_conflict([("alice", {"T": one}), ("bob", {"T": other})])


@pytest.mark.parametrize("other", ["b", "*", "a || b", "SQL92: a"])
def test_different_filters_of_one_topic_conflict(other):
    text = tag_conflict([("alice", {"T": "a", "U": "*"}), ("bob", {"T": other}), ("carol", {"T": "a"})])
    assert text.startswith(
        f"of T, alice, carol want 'a' and bob wants '{other}': each gets what its own expression selects"
    )
    assert text.endswith("give all members the same expression, or separate groups")


def test_a_client_does_not_conflict_with_its_own_former_membership():
    """It leaves and joins with another expression; for a moment it is a member twice."""
    former = ("alice", {"T": "a"})
    assert tag_conflict([former, ("alice", {"T": "b"})]) == ""
    assert "alice wants 'b' and bob wants 'a'" in tag_conflict(
        [former, ("alice", {"T": "b"}), ("bob", {"T": "a"})]
    )


def test_a_sentence_is_bounded():
    """A group may have thousands of members, topics and tags."""
    members = [
        (f"client-{number}", {f"T{topic}": f"tag{number}" * 1_000 for topic in range(30)})
        for number in range(30)
    ]
    text = tag_conflict(members)
    assert f"(and {30 - NAMED_MAX} more topics)" in text
    assert len(text) < NAMED_MAX * NAMED_MAX * (EXPRESSION_SHOWN_MAX + 50)
    crowd = [(f"client-{number}", {"T": "a" if number else "b"}) for number in range(1_000)]
    assert f"and {999 - NAMED_MAX} more want 'a'" in tag_conflict(crowd)
