"""Apache's mqadmin reaches members through a broker: for running info, and to process a message again."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from libramq.admin.monitoring import one_round
from libramq.admin.operator import Operator
from libramq.client import PushConsumer
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Program

pytestmark = pytest.mark.interop


def consumed(cluster: Cluster, topic: str, group: str) -> tuple[Program, str]:
    """Return a Java member that has consumed a message of a topic with one queue, and its offset id."""
    cluster.create_topic(topic, 1)
    member = cluster.consumer(group, topic, tags="*")
    sent = cluster.send(topic=topic, body="0")
    member.wait_count(1, "message")
    return member, str(sent["offsetMsgId"])


def test_the_running_info_of_a_java_member(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Running"), cluster.fresh_name("group")
    member, _ = consumed(cluster, topic, group)
    client_id = member.of("started")[0]["clientId"]
    printed = cluster.admin("consumerStatus", "-g", group, "-i", client_id)
    assert "#Consumer Properties#" in printed
    assert topic in printed
    with_stacks = cluster.admin("consumerStatus", "-g", group, "-i", client_id, "-s")
    assert "#Consumer jstack#" in with_stacks
    assert client_id in cluster.admin("consumerStatus", "-g", group)

    # Apache's broker knows the group's topic only after a commit; until then mqadmin prints a stack trace.
    cluster.wait_committed(group, topic, 1)
    progress = cluster.admin("consumerProgress", "-g", group, "-s", "true")
    (row,) = (line.split() for line in progress.splitlines() if line.split()[:1] == [topic])
    assert row[5] != "N/A", "the member's address is known from its running info"


def test_a_java_member_processes_a_message_again(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Directly"), cluster.fresh_name("group")
    member, offset_id = consumed(cluster, topic, group)
    client_id = member.of("started")[0]["clientId"]
    printed = cluster.admin("queryMsgById", "-t", topic, "-i", offset_id, "-g", group, "-d", client_id)
    assert "CR_SUCCESS" in printed
    member.wait_count(2, "message")


def test_a_group_is_forbidden_a_topic_and_allowed_it_again(cluster: Cluster) -> None:
    """Meanwhile its member gets nothing, not even for the pull already held, and continues afterwards."""
    topic, group = cluster.fresh_name("Forbidden"), cluster.fresh_name("group")
    address, admin = cluster.broker_address, cluster.admin
    member, _ = consumed(cluster, topic, group)
    assert admin.may_read(address, group, topic)
    assert not admin.may_read(address, group, topic, readable=False)
    assert not admin.may_read(address, group, topic)
    assert admin.may_read(address, "another", topic)
    cluster.send(topic=topic, body="1")
    # The client logs NO_PERMISSION and pulls again 3 s later; another group reads the message meanwhile.
    other = cluster.consumer(cluster.fresh_name("group"), topic)
    other.wait_event("message", body="1")
    assert [each["body"] for each in member.of("message")] == ["0"]
    allowed_ms = time.time() * 1000
    assert admin.may_read(address, group, topic, readable=True)
    assert member.wait_event("message", body="1")["atMs"] >= allowed_ms


def test_our_monitoring_notices_a_java_member_that_is_stuck(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Monitored"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    member = cluster.consumer(group, topic, hold="stuck")
    cluster.send(topic=topic, body="done")
    cluster.wait_committed(group, topic, 1)

    async def look(later_ms: int) -> tuple[list[dict[str, Any]], list[str]]:
        async with Operator(cluster.namesrv) as admin:
            return await one_round(admin, int(time.time() * 1000) + later_ms)

    def found(later_ms: int = 0) -> tuple[dict[str, Any], list[str]]:
        rows, notices = asyncio.run(look(later_ms))
        (row,) = [each for each in rows if (each["group"], each["topic"]) == (group, topic)]
        return row, [each for each in notices if each.startswith(f"group {group}:")]

    nothing = {"undone": 0, "undoneOfQueue": 0, "delayMs": 0}
    assert found() == ({"group": group, "topic": topic, **nothing}, [])
    cluster.send(topic=topic, body="stuck")
    member.wait_event("message", body="stuck")
    cluster.wait_until(lambda: found()[0]["undone"] == 1, "the undone count", within_s=PATIENCE_S)
    assert found()[1] == []
    (notice,) = found(later_ms=120_000)[1]
    blocked_ms = re.search(r"nothing handled for (\d+) ms, perhaps it is blocked", notice)
    assert blocked_ms, notice
    assert int(blocked_ms[1]) >= 120_000


async def test_the_running_info_of_our_member(cluster: Cluster) -> None:
    """Apache's tool reads our member's info through either broker."""
    topic, group = cluster.fresh_name("Ours"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    seen: list[bytes] = []
    consumer = PushConsumer(group=group, namesrv=cluster.namesrv, consume_from="earliest")
    consumer.subscribe(topic, "*", lambda messages: seen.extend(message.body for message in messages))
    sent = cluster.send(topic=topic, body="once more")
    async with consumer:

        def until(condition: Callable[[], bool], what: str) -> Awaitable[None]:
            return asyncio.to_thread(cluster.wait_until, condition, what, within_s=PATIENCE_S)

        await until(lambda: len(seen) == 1, "the message")
        arguments = ("consumerStatus", "-g", group, "-i", consumer.client_id, "-s")
        printed = await asyncio.to_thread(cluster.admin, *arguments)
        assert "PROP_CONSUMER_START_TIMESTAMP" in printed
        assert topic in printed
        assert "#Consumer jstack#" in printed
        where = ("-t", topic, "-i", str(sent["offsetMsgId"]))
        member = ("-g", group, "-d", consumer.client_id)
        printed = await asyncio.to_thread(cluster.admin, "queryMsgById", *where, *member)
        assert "CR_SUCCESS" in printed
        await until(lambda: len(seen) >= 2, "the message once more")
