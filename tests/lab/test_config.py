"""An error in an experiment is reported in one sentence that names the option and the allowed values."""

import sys
from pathlib import Path
from typing import Any

import pytest

from libramq.errors import ConfigError
from libramq.lab.config import read_experiment
from libramq.lab.entrant import STRATEGIES, Allocator, entrant


def test_the_largest_documented_configuration_is_read():
    found = read_experiment(members=100_000, queues=1_000_000)
    assert len(found.groups) == 1_000
    assert {(group.size.members, group.size.queues) for group in found.groups} == {(100, 1_000)}
    assert [entrant.name for entrant in found.entrants] == list(STRATEGIES)


def test_kinds_of_history_alternate():
    found = read_experiment(small=True, histories=["flapping", "zone_loss"], groups=3)
    assert [group.kind for group in found.groups] == ["flapping", "zone_loss", "flapping"]
    assert sum(group.size.members for group in found.groups) == 200


def test_options_outrank_small_and_small_outranks_the_file(tmp_path: Path):
    file = tmp_path / "lab.toml"
    file.write_text('members = 5000\nseed = 7\nstrategies = ["AVG"]\n')
    found = read_experiment(file, small=True, queues=900)
    assert sum(group.size.members for group in found.groups) == 200
    assert sum(group.size.queues for group in found.groups) == 900
    assert {group.seed for group in found.groups} == {7}
    assert [each.name for each in found.entrants] == ["AVG"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"histories": ["rolling"]}, "histories: no rolling; did you mean rolling_deploy?"),
        ({"histories": ["x"]}, "histories: no x; there are: rolling_deploy, autoscaling"),
        ({"histories": []}, "histories: give at least one of rolling_deploy"),
        ({"histories": ["recorded"]}, "histories: recorded ones need events"),
        ({"histories": ["flapping", "flapping"]}, "histories: flapping is named twice"),
        ({"strategies": ["AVGG"]}, "strategies: there is no strategy 'AVGG'; known are AVG"),
        ({"strategies": ["AVG@broker"]}, "strategies: AVG@broker: behind @ stands clients or coordinator"),
        ({"strategies": ["no_such_module:f"]}, "strategies: no_such_module:f: cannot import no_such_module"),
        ({"strategies": ["math:tau"]}, "strategies: math:tau: math has no tau that is a function"),
        ({"members": 0}, "members=0: give a whole number from 1 to 1000000"),
        ({"queues": 10**9}, "queues=1000000000: give a whole number from 1 to 10000000"),
        ({"topics": 1}, "topics=1: give a whole number from 2 to 1000"),
        ({"groups": 3}, "groups=3: give a whole number from 5 to 2000"),
        ({"members": 3}, "members=3 and queues=20000 are too few for 5 histories"),
        ({"seed": -1}, "seed=-1: give a whole number from 0"),
        ({"output": "s3://bucket"}, "output='s3://bucket': give a directory"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as caught:
        read_experiment(**given)
    assert said in str(caught.value)


def test_an_unknown_key_is_named(tmp_path: Path):
    file = tmp_path / "lab.toml"
    file.write_text("member = 5\n")
    with pytest.raises(ConfigError, match=r"no key member; did you mean members\?"):
        read_experiment(file)


def test_each_strategy_has_its_default_allocator():
    assert entrant("AVG").allocator is Allocator.CLIENTS
    assert entrant("CONFIG").allocator is Allocator.CLIENTS
    assert entrant("sticky").allocator is Allocator.COORDINATOR
    assert entrant("sticky@clients").allocator is Allocator.CLIENTS
    assert entrant("AVG@coordinator").allocator is Allocator.COORDINATOR


def test_users_may_bring_their_own_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lab_rules_of_mine.py").write_text("def first(me, queues, ids):\n    return queues[:1]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = entrant("lab_rules_of_mine:first")
    assert found.allocator is Allocator.CLIENTS
    assert found.strategy is not None
