"""A name server and one broker cannot reach each other; all other connections work."""

import pytest

from libramq.testing.scenarios.faults import Faults
from libramq.testing.simulation import Simulation
from tests.testing.test_broken_rules import OURS, STOCK, scenario


@pytest.mark.parametrize("group", [OURS, STOCK], ids=["coordinated", "stock"])
@pytest.mark.parametrize("seed", range(3))
def test_a_broker_missing_at_one_name_server_keeps_its_queues_and_groups(
    monkeypatch: pytest.MonkeyPatch, group, seed
):
    """It expires after 10 s and returns; members that know it continue, and others join meanwhile."""
    split = Faults.split_name_servers

    def one_broker(self: Faults) -> None:
        with monkeypatch.context() as chance:
            chance.setattr(self._random, "random", lambda: 0.0)  # One broker is cut off, and it is notified.
            split(self)

    monkeypatch.setattr(Faults, "split_name_servers", one_broker)
    actions = ("split_name_servers", "join", "stop", "join", "split_name_servers", "join")
    report = Simulation(seed, scenario=scenario(*actions, group=group, broker_count=2, members=3)).run()
    assert report.violation is None
