"""`libra groups` against a `libra up` with a group that members join and leave."""

import asyncio
import json
import sys

from libramq import Message, Producer, PushConsumer
from libramq.admin.groups import group_rebalances
from libramq.client import Admin, ConsumeFrom, Retry
from libramq.errors import ConfigError
from libramq.groups.rebalance_history import RebalanceState
from libramq.nameserver import NameServer
from tests.cli.commands import SECONDS_MAX, libra, one_line
from tests.interop.ports import free_port

GROUP, TOPIC = "G_watched", "T_watched"


def member(namesrv, name):
    consumer = PushConsumer(
        group=GROUP, namesrv=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, instance_name=name
    )
    consumer.subscribe(TOPIC, "*", lambda messages: None)
    return consumer


async def settled(namesrv, count):
    """Wait until this many rebalances of the group are over."""
    while True:
        try:
            found = await asyncio.to_thread(group_rebalances, namesrv, GROUP, last=100)
        except ConfigError:
            found = []
        if len(found) >= count and all(one.state is RebalanceState.SETTLED for one in found):
            return
        await asyncio.sleep(0.1)


async def test_joins_and_departures_of_a_group_are_shown(up):
    namesrv = up.namesrv
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with Producer(namesrv=namesrv) as producer:
        await producer.send(Message(TOPIC, b"x"))
    async with asyncio.timeout(SECONDS_MAX), member(namesrv, "first"):
        await settled(namesrv, 1)
        async with member(namesrv, "second"):
            await settled(namesrv, 2)
            shown = await asyncio.to_thread(libra, "groups", "--json", "-n", namesrv)
            table = await asyncio.to_thread(libra, "groups", "--once", "-n", namesrv)
            members = await asyncio.to_thread(libra, "groups", "--members", "--json", "-n", namesrv)
        await settled(namesrv, 3)
    (row,) = [row for row in json.loads(shown.out) if row["group"] == GROUP]
    assert (row["members"], row["queues"], row["state"]) == (2, 4, "settled")
    assert (row["lastRebalance"]["moved"], row["lastRebalance"]["minimum"]) == (2, 2)
    (line,) = [line for line in table.out.splitlines() if GROUP in line]
    assert "member_joined" in line
    assert "moved 2 (minimum 2)" in line
    (shown_members,) = [one["members"] for one in json.loads(members.out) if one["group"] == GROUP]
    assert [one["clientId"].partition("@")[2] for one in shown_members] == ["first", "second"]
    queues = [queue for one in shown_members for held in one["queues"] for queue in held["queueIds"]]
    assert sorted(queues) == [0, 1, 2, 3]
    assert {held["topic"] for one in shown_members for held in one["queues"]} == {TOPIC}

    told = json.loads(libra("groups", "history", "-g", GROUP, "--json", "-n", namesrv).out)
    assert [one["causes"][0]["reason"] for one in told[:3]] == [
        "member_joined",
        "member_joined",
        "member_left",
    ]
    assert set(told[1]["loads"].values()) == {2}
    assert {move["from"] for move in told[1]["moves"]} == set(told[0]["loads"])
    last = libra("groups", "-n", namesrv, "history", "-g", GROUP, "--last", "1").out
    assert len([line for line in last.splitlines() if not line.startswith(" ")]) == 1


async def test_a_lost_static_member_is_removed(up):
    """Its queues move to the remaining members long before its session ends."""
    namesrv = up.namesrv
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("T_removed", queues=4)
    queues: dict[str, set] = {}
    has_changed = asyncio.Event()

    def joins(name):
        mine = queues.setdefault(name, set())

        def changed(change):
            def told(some):
                change(some)
                has_changed.set()

            return told

        consumer = PushConsumer(
            group="G_removed",
            namesrv=namesrv,
            instance_name=name,
            instance_id=name,
            on_assigned=changed(mine.update),
            on_revoked=changed(mine.difference_update),
            on_lost=changed(mine.difference_update),
            session_ms=600_000,
        )
        consumer.subscribe("T_removed", "*", lambda messages: None)
        return consumer

    async def shared(*counts):
        while [sum(queue.topic == "T_removed" for queue in mine) for mine in queues.values()] != [*counts]:
            has_changed.clear()
            await has_changed.wait()

    async with asyncio.timeout(SECONDS_MAX), joins("stays"):
        async with joins("goes"):
            await shared(2, 2)
            shown = await asyncio.to_thread(libra, "groups", "--members", "-n", namesrv)
            (line,) = [line for line in shown.out.splitlines() if "127.0.0.1@goes" in line]
            assert line.split()[:3] == ["G_removed", "127.0.0.1@goes", "goes"]
            connection = ("admin", "consumerConnection", "-g", "G_removed", "-n", namesrv)
            shown = await asyncio.to_thread(libra, *connection)
            (line,) = [line for line in shown.out.splitlines() if "127.0.0.1@goes" in line]
            assert len(line.split()) == 4, "client id, address, language and version: the heading has no more"
        remove = ("groups", "remove", "-g", "G_removed", "-n", namesrv, "--member")
        done = await asyncio.to_thread(libra, *remove, "goes")
        assert (done.code, done.out) == (0, "removed goes from G_removed\n")
        queues["goes"].clear()
        await shared(4, 0)
        again = await asyncio.to_thread(libra, *remove, "goes")
        assert "group G_removed has no member 'goes'; it has stays" in one_line(again)
        history = ("groups", "history", "-g", "G_removed", "--json", "-n", namesrv)
        causes: list[dict] = []
        while not any(cause["reason"] == "operator" for cause in causes):
            told = await asyncio.to_thread(libra, *history)
            causes = [cause for one in json.loads(told.out) for cause in one["causes"]]
    (who,) = [cause["who"] for cause in causes if cause["reason"] == "operator"]
    assert who.endswith("@127.0.0.1 removed 127.0.0.1@goes")


async def test_removing_needs_a_coordinated_group(up):
    nobody = ("groups", "remove", "-g", "G_nobody", "--member", "x", "-n", up.namesrv)
    assert "no broker knows group G_nobody" in one_line(await asyncio.to_thread(libra, *nobody))


async def test_idle_members_and_an_orderly_one_beside_another_are_diagnosed(up):
    """The test repeats the command because the broker looks for problems only every few seconds."""
    namesrv, group = up.namesrv, "G_idle"
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("T_idle", queues=1)

    def idle(name, **options):
        consumer = PushConsumer(group=group, namesrv=namesrv, instance_name=name, **options)
        consumer.subscribe("T_idle", "*", lambda messages: None)
        return consumer

    async with asyncio.timeout(SECONDS_MAX), idle("first"), idle("second", orderly=True):
        rows: list[dict] = []
        while not any(len(row["diagnoses"]) == 2 for row in rows):
            shown = await asyncio.to_thread(libra, "groups", "--json", "-n", namesrv)
            rows = [row for row in json.loads(shown.out) if row["group"] == group]
        table = await asyncio.to_thread(libra, "groups", "--once", "-n", namesrv)
    ((order, idleness),) = [row["diagnoses"] for row in rows]
    assert (order["kind"], idleness["kind"]) == ("strategies_differ", "idle_members")
    assert "@second consume in order, and 127.0.0.1@first do not" in table.out.replace("\n", " ")
    assert f"{group}: idle_members: 2 members share 1 queue, so 1 of them is idle" in table.out


def test_an_unknown_group_is_named(up):
    said = one_line(libra("groups", "history", "-n", up.namesrv, "-g", "G_nobody"))
    assert said.startswith("no rebalance of group G_nobody is recorded")


async def test_brokers_without_rebalance_events_are_reported():
    """Apache's brokers lack the topic of the events."""
    port = free_port()
    server = NameServer("127.0.0.1", port)
    await server.start()
    try:
        for command in (["groups", "--once"], ["groups", "history", "-g", "G"]):
            said = one_line(await asyncio.to_thread(libra, *command, "-n", f"127.0.0.1:{port}"))
            assert f"no broker at name server 127.0.0.1:{port} records rebalances" in said
    finally:
        await server.stop()


HANGING = """
import sys, time
from libramq.sync import PushConsumer
def handle(messages): print("called", flush=True); time.sleep(600)
consumer = PushConsumer(group=sys.argv[1], namesrv=sys.argv[2], consume_from="earliest")
consumer.subscribe(sys.argv[3], "*", handle)
with consumer: time.sleep(600)
"""


async def test_a_group_that_died_before_its_first_commit_has_a_problem(up):
    """It used to go unnoticed: it had read five of eight messages, and committed nothing."""
    group, topic = "G_stillborn", "T_stillborn"
    async with Admin(namesrv=up.namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    async with Producer(namesrv=up.namesrv) as producer, asyncio.timeout(SECONDS_MAX):
        for _ in range(5):
            await producer.send(Message(topic, b"x"))
        member = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HANGING, group, up.namesrv, topic, stdout=asyncio.subprocess.PIPE
        )
        try:
            await member.stdout.readline()
        finally:
            member.kill()
            await member.wait()
        for _ in range(3):
            await producer.send(Message(topic, b"x"))
        rows: list[dict] = []
        while not any(row["members"] == 0 for row in rows):
            shown = await asyncio.to_thread(libra, "groups", "--json", "-g", group, "-n", up.namesrv)
            rows = json.loads(shown.out)
    assert (rows[0]["lag"], [one["kind"] for one in rows[0]["diagnoses"]]) == (8, ["no_members"])


async def test_a_message_that_fails_again_and_again_where_it_is_popped_is_a_problem(up):
    """The problem remains once its last member has stopped."""
    group, topic = "G_popped", "T_popped"
    async with Admin(namesrv=up.namesrv) as admin:
        await admin.create_topic(topic, queues=1)

    async def found() -> list[str]:
        shown = await asyncio.to_thread(libra, "groups", "--json", "-g", group, "-n", up.namesrv)
        return [one["kind"] for row in json.loads(shown.out) for one in row["diagnoses"]]

    async with Producer(namesrv=up.namesrv) as producer:
        await producer.send(Message(topic, b"poison"))
    consumer = PushConsumer(group=group, namesrv=up.namesrv, consume_from="earliest", pop=True)
    consumer.subscribe(
        topic, "*", lambda messages: Retry(after=1 if messages[0].reconsume_times < 3 else 600)
    )
    async with asyncio.timeout(SECONDS_MAX):
        async with consumer:
            kinds: list[str] = []
            while kinds != ["failing"]:
                kinds = await found()
        assert "failing" in await found()


async def test_a_group_whose_members_are_gone_has_a_problem(up):
    """Its state used to be `settled`, without a hint, while its messages waited."""
    group, topic = "G_deserted", "T_deserted"
    async with Admin(namesrv=up.namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    handled = asyncio.Event()

    async def handle(messages):
        handled.set()

    async with Producer(namesrv=up.namesrv) as producer:
        await producer.send(Message(topic, b"x"))
        consumer = PushConsumer(group=group, namesrv=up.namesrv, consume_from="earliest")
        consumer.subscribe(topic, "*", handle)
        async with consumer, asyncio.timeout(SECONDS_MAX):
            await handled.wait()
        for _ in range(5):
            await producer.send(Message(topic, b"x"))
    shown = await asyncio.to_thread(libra, "groups", "--json", "-n", up.namesrv)
    (row,) = [row for row in json.loads(shown.out) if row["group"] == group]
    assert (row["members"], row["lag"], row["state"]) == (0, 5, "no members")
    assert [one["kind"] for one in row["diagnoses"]] == ["no_members"]
    table = await asyncio.to_thread(libra, "groups", "--once", "-n", up.namesrv)
    assert f"{group}: no_members: 5 messages wait, and no member is connected" in table.out
    rows = json.loads((await asyncio.to_thread(libra, "groups", "--json", "-n", up.namesrv)).out)
    assert rows[0]["state"] == "no members"  # Groups that need attention come first.
    only = await asyncio.to_thread(libra, "groups", "--json", "-g", group, "-n", up.namesrv)
    assert [row["group"] for row in json.loads(only.out)] == [group]
    found = await asyncio.to_thread(libra, "groups", "--json", "--problems", "-n", up.namesrv)
    assert group in [row["group"] for row in json.loads(found.out)]
    none = await asyncio.to_thread(libra, "groups", "-g", "G_never", "-n", up.namesrv)
    assert one_line(none).startswith("no broker knows group G_never")


async def test_wrong_names_of_topics_and_groups_get_the_nearest(up):
    """`groups` used to name only the missing topic; `history` and `dlq` suggested no group."""
    async with Admin(namesrv=up.namesrv) as admin:
        await admin.create_topic("T_nearest", queues=1)
    consumer = PushConsumer(group="G_nearest", namesrv=up.namesrv)
    consumer.subscribe("T_neraest", "*", print)
    async with consumer, asyncio.timeout(SECONDS_MAX):
        table = ""
        while "did you mean T_nearest for T_neraest?" not in table:
            shown = await asyncio.to_thread(libra, "groups", "-g", "G_nearest", "--once", "-n", up.namesrv)
            table = shown.out
    for command in (["groups", "--once"], ["groups", "history"], ["dlq", "list"]):
        said = one_line(await asyncio.to_thread(libra, *command, "-n", up.namesrv, "-g", "G_neraest"))
        assert "(did you mean G_nearest?); libra groups lists all" in said
