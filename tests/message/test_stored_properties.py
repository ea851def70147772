"""The broker's edits to the text of properties equal those made by parsing it."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.message.properties import properties_from_text, properties_to_text
from libramq.message.stored_properties import BrokerProperties, find, with_property, without

NAMES = [
    "TAGS",
    "UNIQ_KEY",
    "KEY",
    "KEYS",
    "CLUSTER",
    "MSG_REGION",
    "TRACE_ON",
    "a",
    "A",
    "aa",
    ".",
    "(",
    "\n",
]
names = st.sampled_from(NAMES) | st.text(st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=4)
values = st.text(st.characters(exclude_characters="\x01\x02"), min_size=1, max_size=8) | st.sampled_from(
    NAMES
)
properties = st.dictionaries(names, values, max_size=6)
garbage = st.text(st.sampled_from("\x01\x02aTAGS\n."), max_size=30)


@given(properties, names, st.booleans())
def test_a_property_is_found_as_in_the_parsed_text(given_properties, name, cut):
    text = properties_to_text(given_properties)
    if cut:
        text = text.removesuffix("\x02")
    assert find(text, name) == given_properties.get(name)


@given(properties, names, values, st.booleans())
def test_setting_and_removing_change_one_property_only(given_properties, name, value, cut):
    text = properties_to_text(given_properties)
    if cut:
        text = text.removesuffix("\x02")
    assert properties_from_text(with_property(text, name, value)) == given_properties | {name: value}
    rest = {other: kept for other, kept in given_properties.items() if other != name}
    assert properties_from_text(without(text, name)) == rest


@given(properties)
def test_the_broker_adds_its_own_properties(given_properties):
    own = BrokerProperties(cluster="C", region="R", trace_on=True)
    expected = given_properties | {"CLUSTER": "C", "MSG_REGION": "R", "TRACE_ON": "true"}
    text = own.added_to(properties_to_text(given_properties))
    assert properties_from_text(text) == expected
    assert text.endswith("\x02")


@given(garbage, st.sampled_from(["TAGS", "a", "A"]))
def test_of_repeated_properties_the_last_counts_and_a_change_leaves_one(text, name):
    found = properties_from_text(text)
    if text.count(name + "\x01") <= 1:
        assert find(text, name) in (found.get(name), None) or "\x01" in (find(text, name) or "")
    assert properties_from_text(with_property(text, name, "new"))[name] == "new"
    assert without(without(text, name), name) == without(text, name)


def test_broker_and_consumer_agree_on_the_last_of_several():
    text = "TAGS\x01a\x02x\x01y\x02TAGS\x01b\x02"
    assert find(text, "TAGS") == properties_from_text(text)["TAGS"] == "b"
    assert properties_from_text(without(text, "TAGS")) == {"x": "y"}


def test_an_empty_value_means_no_property():
    assert find("TAGS\x01\x02x\x01y\x02", "TAGS") is None
    assert properties_from_text(with_property("TAGS\x01\x02", "TAGS", "z")) == {"TAGS": "z"}


ID = "0A0000011267AABBCCDD0123ABCD%04X"
ODD = ["", "0a", "-", "\x02", "TIMER_DELAY_MS\x015\x02", "TRAN_MSG\x01true\x02", "\0", "é", "TAGS\x01A\x02"]


@given(
    st.lists(st.sampled_from(ODD), min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=2),
    st.sampled_from([1, 23, 24, 40]),
    st.sampled_from(["UNIQ_KEY\x01", "K\x01v\x02UNIQ_KEY\x01", "KEYS\x01", ""]),
    st.sampled_from(["\x02WAIT\x01true\x02", "\x02", "", "\x02TAGS\x01A\x02", "\x02KEYS\x01TIMER_D\x02"]),
)
def test_properties_of_many_messages_are_completed_as_those_of_each(odd, places, count, before, behind):
    """Few texts may differ, in any byte: details that `added_to_plain` checks must stop the
    others as well.
    """
    own = BrokerProperties(cluster="C", region="R", trace_on=True)
    texts = [f"{before}{ID % number}{behind}" for number in range(count)]
    for place, text in zip(places, odd, strict=False):
        at = place % count
        texts[at] = f"{texts[at][: place or 1]}{text}{texts[at][(place or 1) + len(text) :]}"
    encoded = [text.encode() for text in texts]
    each = [own.added_to_plain(one) for one in encoded]
    found = own.suffix_of_all_plain(encoded)
    if found is None:
        assert None in each
    else:
        suffix, may_have_tag = found
        assert [one + suffix for one in encoded] == [added for added, _ in each]
        assert may_have_tag == any(has_tag for _, has_tag in each)
