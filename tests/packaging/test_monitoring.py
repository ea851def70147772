"""Alert rules and the board of packaging/: what they name is what brokers serve."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from libramq.broker.metrics import FAMILIES, Metrics

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
RULES = PACKAGING / "prometheus" / "libramq-alerts.yaml"
BOARD = PACKAGING / "grafana" / "board.json"
#: Labels that Prometheus adds, and the bounds of histograms.
ADDED = {"instance", "job", "le"}
ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def expressions() -> Iterator[str]:
    """Yield every expression of rules and board, and one for each of the board's variables."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert asked is not None
            yield f"sum by ({asked[2]}) ({asked[1]})"


def served() -> dict[str, set[str]]:
    """Return the labels of every time series of a broker, by name."""
    kept = [
        each
        for metric in vars(Metrics()).values()
        for each in (metric.values() if isinstance(metric, dict) else [metric])
        if hasattr(each, "_labelnames")
    ]
    families = [(each.describe()[0], each._labelnames) for each in kept]
    families += [(family.kind(family.name, "", labels=family.labels), family.labels) for family in FAMILIES]
    found = {family.name + end: set(labels) for family, labels in families for end in ENDINGS[family.type]}
    return {"up": set(), **found}


@pytest.mark.parametrize("expression", list(expressions()))
def test_expressions_name_what_brokers_serve(expression: str) -> None:
    """A renamed metric or label would leave an alert that never comes."""
    known, labels = served(), set()
    metrics = set(re.findall(r"\b(?:libra|rocketmq)_\w+|\bup\b", expression))
    assert metrics
    for metric in metrics:
        assert metric in known
        labels |= known[metric]
    for names in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(names.split(", ")) <= labels | ADDED
    for matchers in re.findall(r"\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= labels | ADDED


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_board_has_a_place_for_each_panel() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
