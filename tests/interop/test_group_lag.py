"""The lag of Apache's Java consumers that have committed nothing, at our broker."""

import json
from typing import Any

import pytest

from tests.cli.commands import libra
from tests.interop.cluster import Cluster

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("begins", ["first", "last"])
def test_a_java_group_that_dies_before_its_first_commit_is_seen(cluster: Cluster, begins: str) -> None:
    """It is killed while it handles everything it was sent."""
    if cluster.kind != "libra":
        pytest.skip("Apache's broker has no diagnoses")
    topic, group = cluster.fresh_name("Stillborn"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    bodies = [f"held {number}" for number in range(3)]
    for body in bodies:
        cluster.send(topic=topic, body=body)
    # A young topic is read from its first message.
    settings = {"tags": "*", "from": begins, "hold": ",".join(bodies)}
    member = cluster.consumer_process(group, topic, **settings)
    member.wait_count(3, "message")

    def row() -> dict[str, Any]:
        (found,) = json.loads(libra("groups", "-g", group, "--json", namesrv=cluster.namesrv).out)
        assert isinstance(found, dict)
        return found

    assert (row()["members"], row()["lag"]) == (1, 3)
    member.kill()
    cluster.send(topic=topic, body="nobody reads it")
    cluster.wait_until(lambda: row()["members"] == 0, "no members", within_s=60)
    assert (row()["lag"], [each["kind"] for each in row()["diagnoses"]]) == (4, ["no_members"])
