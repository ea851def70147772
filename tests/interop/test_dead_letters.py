"""Dead letters at Apache's broker and at ours: of Apache's Java consumer, and of our client."""

import asyncio
import json

import pytest

from libramq import PushConsumer
from libramq.admin.dead_letters import DeadLetters
from tests.cli.commands import libra
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop


def count(cluster: Cluster, group: str) -> int:
    with DeadLetters(cluster.namesrv, group) as letters:
        return letters.count()


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_java_consumers_dead_letters_are_listed_and_sent_again(cluster: Cluster, orderly: bool) -> None:
    """A Java consumer of another group gets the resent message, with its tag, key and mark."""
    topic, group = cluster.fresh_name("Failing"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    sent = cluster.send(topic=topic, body="poison", tags="red", keys="order-7")
    failing = cluster.consumer(
        group, topic, tags="*", fail="always", maxReconsume=0 if not orderly else 1, orderly=orderly
    )
    cluster.wait_until(lambda: count(cluster, group) == 1, "a dead letter", within_s=PATIENCE_S)
    failing.finish()

    (row,) = json.loads(libra("dlq", "list", "-g", group, "--json", namesrv=cluster.namesrv).out)
    assert (row["messageId"], row["originTopic"], row["keys"]) == (sent["msgId"], topic, ["order-7"])
    shown = libra("dlq", "show", "-g", group, row["messageId"], namesrv=cluster.namesrv)
    assert json.loads(shown.out)[0]["body"] == "poison"

    again = libra("dlq", "replay", "-g", group, "--all", namesrv=cluster.namesrv)
    assert again.out == f"sent 1 dead letter of {group} again: 1 to {topic}\n"
    reader = cluster.consumer(cluster.fresh_name("group"), topic, tags="red")
    reader.wait_count(2, "message")
    (marked,) = (each for each in reader.of("message") if "LIBRA_REPLAYED_FROM" in each["properties"])
    assert (marked["body"], marked["properties"]["KEYS"]) == ("poison", "order-7")
    assert marked["properties"]["LIBRA_REPLAYED_FROM"] == f"%DLQ%{group}:{cluster.broker_name}:0:0"


#: Settings of Java's consumer, and the problem that its group has.
FAILING = "failing: messages that failed 3 times or more and wait for another attempt: 1, "
WAYS: dict[str, tuple[dict[str, object], str]] = {
    "concurrent": ({"delayLevel": 0}, FAILING),  # The broker's growing delays.
    "orderly": ({"orderly": True}, "stalled: messages wait, and the group has not moved on for minutes: "),
    "popping": ({"clientRebalance": False}, FAILING),
}
#: Java's client postpones a popped message by 10, 30 and 60 s.
SEEN_WITHIN_S = 240


@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_a_java_consumer_fails_again_and_again_is_seen_before(
    cluster: Cluster, way: str
) -> None:
    """At our broker this takes a minute or two after the first attempt, not almost five hours."""
    if cluster.kind != "libra":
        pytest.skip("Apache's broker has no diagnoses")
    topic, group = cluster.fresh_name("Failing"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    cluster.send(topic=topic, body="poison")
    settings, expected = WAYS[way]
    member = cluster.start("Consume", {"group": group, "topic": topic, "fail": "always", **settings})
    member.wait_event("message")

    def problems(group: str) -> list[str]:
        (row,) = json.loads(libra("groups", "-g", group, "--json", namesrv=cluster.namesrv).out)
        return [f"{each['kind']}: {each['text']}" for each in row["diagnoses"]]

    cluster.wait_until(lambda: problems(group), "the group's problem", within_s=SEEN_WITHIN_S)
    (problem,) = problems(group)
    assert problem.startswith(expected)
    assert count(cluster, group) == 0


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_our_clients_dead_letter_has_the_error_or_its_log_does(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    """Our brokers store what the handler raised; Apache's store the message, and the log says why."""
    topic, group = cluster.fresh_name("Failing"), cluster.fresh_name("group")
    await asyncio.to_thread(cluster.create_topic, topic, 1)
    await asyncio.to_thread(cluster.send, topic=topic, body="poison")

    def raises(messages: object) -> None:
        raise ValueError("no such account")

    consumer = PushConsumer(
        group=group,
        namesrv=cluster.namesrv,
        consume_from="earliest",
        max_reconsume_times=0,
        orderly=orderly,
    )
    consumer.subscribe(topic, "*", raises)
    async with consumer, asyncio.timeout(PATIENCE_S):
        while True:
            if await asyncio.to_thread(count, cluster, group):
                break
            await asyncio.sleep(0.1)
    (line,) = (each for each in caplog.messages if "failed for the last time" in each)
    assert f"it becomes a dead letter in %DLQ%{group}" in line
    assert "ValueError" in line
    assert "no such account" in line
    with DeadLetters(cluster.namesrv, group) as letters:
        (letter,) = letters.newest(5)
    assert letter.topic == topic
    if cluster.kind == "libra":
        assert letter.error == "ValueError: no such account"
