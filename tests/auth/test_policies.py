"""Policy decisions: the most specific matching entry counts, those of the Custom policy first."""

import pytest

from libramq.auth.operation import Action, cluster, group, topic
from libramq.auth.policies import Policies, PolicyType, merged, parse_pattern, without
from libramq.errors import NoPermission
from libramq.formats.access import PolicyEntryInfo, PolicyInfo

PUB, SUB = (Action.PUB,), (Action.SUB,)
HERE, ELSEWHERE = "10.1.2.3", "192.168.0.1"


def entry(line: str) -> PolicyEntryInfo:
    """Make an entry from its text: "ALLOW Topic:x Pub,Sub from 10.0.0.0/8"."""
    decision, resource, actions, *sources = line.replace(" from", "").split(" ")
    return PolicyEntryInfo(
        resource=resource, actions=actions.split(","), source_ips=sources or None, decision=decision
    )


def custom(*lines: str) -> PolicyInfo:
    return PolicyInfo(policy_type="Custom", entries=[entry(line) for line in lines])


def default(*lines: str) -> PolicyInfo:
    return PolicyInfo(policy_type="Default", entries=[entry(line) for line in lines])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), None),
        (("ALLOW Topic:orders Pub",), "Allow"),
        (("allow topic:orders pub",), "Allow"),
        (("ALLOW Topic:orders Sub",), None),
        (("ALLOW Topic:orders All",), "Allow"),
        (("ALLOW Group:orders Pub",), None),
        (("ALLOW Topic:order Pub",), None),
        (("ALLOW Topic:ord* Pub",), "Allow"),
        (("ALLOW Topic:* Pub",), "Allow"),
        (("ALLOW * Pub",), "Allow"),
        (("ALLOW Topic:* All", "DENY Topic:ord* Pub"), "Deny"),
        (("DENY Topic:* All", "ALLOW Topic:ord* Pub"), "Allow"),
        (("DENY Topic:o* Pub", "ALLOW Topic:ord* Pub"), "Allow"),
        (("ALLOW Topic:ord* Pub", "DENY Topic:orders Pub"), "Deny"),
        (("DENY Topic:ord* Pub", "ALLOW Topic:orders Pub"), "Allow"),
        (("DENY * All", "ALLOW Topic:* Pub"), "Allow"),
        (("ALLOW Topic:ord* Pub", "DENY Topic:orders Sub"), "Allow"),
        (("ALLOW Topic:orders Pub from 10.1.2.3",), "Allow"),
        (("ALLOW Topic:orders Pub from 10.0.0.0/8",), "Allow"),
        (("ALLOW Topic:orders Pub from 192.168.0.0/16",), None),
        (("ALLOW Topic:ord* Pub", "DENY Topic:orders Pub from 10.1.0.0/16"), "Deny"),
        (("ALLOW Topic:ord* Pub", "DENY Topic:orders Pub from 10.2.0.0/16"), "Allow"),
    ],
)
def test_the_most_specific_entry_that_fits_decides(lines, expected):
    policies = Policies([custom(*lines)])
    assert policies.decide(topic("orders"), PUB, HERE) == expected


def test_the_order_of_entries_does_not_matter():
    lines = ("DENY Topic:* All", "ALLOW Topic:ord* Pub", "DENY Topic:orders-x Pub")
    for some in (lines, lines[::-1]):
        assert Policies([custom(*some)]).decide(topic("orders-x"), PUB, HERE) == "Deny"
        assert Policies([custom(*some)]).decide(topic("orders-y"), PUB, HERE) == "Allow"


def test_the_default_policy_is_asked_if_no_custom_entry_fits():
    policies = Policies([default("DENY Topic:orders Pub"), custom("ALLOW Topic:* Pub from 10.0.0.0/8")])
    assert policies.decide(topic("orders"), PUB, HERE) == "Allow"
    assert policies.decide(topic("orders"), PUB, ELSEWHERE) == "Deny"
    assert policies.decide(topic("orders"), SUB, ELSEWHERE) is None


def test_any_of_the_actions_is_enough():
    policies = Policies([custom("ALLOW Group:G Get")])
    assert policies.decide(group("G"), (Action.SUB, Action.GET), HERE) == "Allow"


@pytest.mark.parametrize(
    ("source", "host", "fits"),
    [
        ("::1", "[::1]", True),
        ("fd00::/8", "[fd12::1]", True),
        ("10.0.0.0/8", "[::ffff:10.1.1.1]", True),
        ("10.0.0.0/8", "[fd12::1]", False),
        ("0.0.0.0/0", "machine-3", False),
    ],
)
def test_addresses_of_every_form(source, host, fits):
    policies = Policies([custom(f"ALLOW Cluster:C Get from {source}")])
    assert policies.decide(cluster("C"), (Action.GET,), host) == ("Allow" if fits else None)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ALLOW Queue:x Pub", "The resource type is null"),
        ("ALLOW Topic: Pub", "The resource pattern is null"),
        ("ALLOW Topic:a*b Pub", "The resource pattern is null"),
        ("ALLOW Topic:x Any", "The actions can not be Any"),
        ("ALLOW Topic:x Fly", "The actions is empty"),
        ("MAYBE Topic:x Pub", "The decision is null or illegal"),
        ("ALLOW Topic:x Pub from 10.0.0.0/99", "The source ip is invalid"),
    ],
)
def test_an_invalid_entry_is_refused_with_the_reason(line, told):
    with pytest.raises(NoPermission, match=told):
        merged([], [custom(line)])


def test_an_entry_replaces_the_one_for_the_same_resource():
    first = merged([], [custom("ALLOW Topic:a Pub", "allow topic:b* pub,all")])
    assert first == [custom("Allow Topic:a Pub", "Allow Topic:b* Pub,All")]
    second = merged(first, [custom("DENY Topic:a Sub"), default("ALLOW * All")])
    assert second == [custom("Deny Topic:a Sub", "Allow Topic:b* Pub,All"), default("Allow * All")]
    assert without(second, PolicyType.CUSTOM, "Topic:b*") == [
        custom("Deny Topic:a Sub"), default("Allow * All")
    ]  # fmt: skip
    assert without(second, PolicyType.DEFAULT, "*") == second[:1]


def test_prefixes_and_names_are_told_apart():
    assert parse_pattern("Topic:x") != parse_pattern("Topic:x*")
