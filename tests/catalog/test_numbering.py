"""The numbers of a topic's queues across several brokers."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.catalog.numbering import Numbering, Place, Run, best, spread

COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), max_size=4)


def test_queues_are_appended_and_keep_their_numbers():
    first = Numbering().extended({"b": 2})
    second = first.extended({"a": 1, "b": 3})
    assert second.runs == (Run("b", 2), Run("a", 1), Run("b", 1))
    assert second.places() == [Place("b", 0), Place("b", 1), Place("a", 0), Place("b", 2)]


@given(st.lists(COUNTS, max_size=5))
def test_every_queue_has_one_number_for_ever(steps: list[dict[str, int]]):
    numbering, places = Numbering(), list[Place]()
    for counts in steps:
        numbering = numbering.extended(counts)
        assert numbering.covers(counts)
        assert numbering.places()[: len(places)] == places
        places = numbering.places()
    assert len(set(places)) == len(places) == numbering.size
    assert [numbering.place(index) for index in range(len(places))] == places
    assert [numbering.partition(*place) for place in places] == list(range(len(places)))
    assert numbering.place(-1) is numbering.place(len(places)) is None
    assert numbering.partition("e", 0) is None


def test_all_choose_the_same_of_two_that_were_extended_apart():
    one, other = Numbering((Run("a", 2), Run("b", 1))), Numbering((Run("a", 2), Run("c", 1)))
    assert best([one, other]) == best([other, one])
    assert best([one, Numbering((Run("a", 1),), version=1)]) == Numbering((Run("a", 1),), version=1)
    assert best([]) is None


def test_partitions_are_spread_as_equally_as_possible():
    assert spread(7, {"c": 0, "a": 0, "b": 0}) == {"c": 3, "a": 2, "b": 2}
    assert spread(6, {"a": 4, "b": 0, "c": 0}) == {"a": 4, "b": 1, "c": 1}
