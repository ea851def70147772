"""Our client with Apache's servers and ours, and beside Apache's Java client in one group."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from libramq.client import ConsumeFrom, Sql, by_hash
from libramq.errors import LibraError, RouteNotFound
from libramq.message import Message, MessageExt, MessageQueue
from libramq.sync import Admin, Consumer, Producer, PushConsumer
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

QUEUES = 4
# Less than a broker holds a pull: a message that arrives within this time has woken the pull.
HELD_S = 14.0


class Inbox:
    """A handler that keeps messages; tests can wait for them."""

    def __init__(self, *, accept: bool = True) -> None:
        self.messages: list[MessageExt] = []
        self._accept = accept
        self._changed = threading.Condition()

    def __call__(self, messages: list[MessageExt]) -> bool:
        with self._changed:
            self.messages += messages
            self._changed.notify_all()
        return self._accept

    def wait(self, condition: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, within_s), [m.body for m in self.messages]

    def wait_count(self, count: int) -> list[MessageExt]:
        self.wait(lambda: len(self.messages) >= count)
        return self.messages

    def bodies(self) -> set[str]:
        return {message.body.decode() for message in list(self.messages)}


def consumer(cluster: Cluster, group: str, topic: str, inbox: Inbox, tags: str | Sql = "*") -> PushConsumer:
    member = PushConsumer(group=group, namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    member.subscribe(topic, tags, inbox)
    return member


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("A || B", "A"), (Sql("TAGS IN ('A', 'B')"), Sql("TAGS = 'A'"))],
    ids=["tags", "SQL92"],
)
def test_an_idle_member_with_fewer_tags_takes_nothing(
    cluster: Cluster, wide: str | Sql, narrow: str | Sql
) -> None:
    """Pulls carry their own expression; the broker's is the newest heartbeat's, here the idle member's."""
    topic, group = cluster.fresh_name("Tags"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    inboxes = [Inbox(), Inbox()]
    members = [
        PushConsumer(group=group, namesrv=cluster.namesrv, consume_from="earliest", instance_name=name)
        for name in ("a-reader", "b-idle")
    ]
    for member, expression, inbox in zip(members, (wide, narrow), inboxes, strict=True):
        member.subscribe(topic, expression, inbox)
    with members[0] as reader:
        cluster.send(topic=topic, body="first", tags="A")
        inboxes[0].wait_count(1)
        with members[1], Admin(namesrv=cluster.namesrv) as admin:

            def is_idle_members() -> bool:
                table = admin.consumer_connection(group).subscription_table
                return table[topic].sub_string == getattr(narrow, "expression", narrow)

            cluster.wait_until(is_idle_members, "the idle member is not known", within_s=PATIENCE_S)
            for number in range(10):
                cluster.send(topic=topic, body=str(number), tags="AB"[number % 2])
            inboxes[0].wait_count(11)
            assert [queue.queue_id for queue in reader.assignment() if queue.topic == topic] == [0]
    assert [message.body.decode() for message in inboxes[0].messages[1:]] == list("0123456789")
    assert not inboxes[1].messages


def test_a_missing_topic_is_reported_and_its_group_is_visible(cluster: Cluster) -> None:
    """The nearest name comes from the name server, the group is at a broker, and the topic may come later."""
    topic, group = cluster.fresh_name("Missing"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    missing = f"{topic}s"
    errors: list[LibraError] = []
    inbox = Inbox()
    member = PushConsumer(
        group=group, namesrv=cluster.namesrv, consume_from="earliest", on_error=errors.append
    )
    member.subscribe(missing, "*", inbox)
    with member, Admin(namesrv=cluster.namesrv) as admin:
        cluster.wait_until(lambda: bool(errors), "nothing was reported", within_s=PATIENCE_S)
        assert isinstance(errors[0], RouteNotFound)
        assert f"no broker has the topic {missing} (did you mean {topic}?)" in str(errors[0])

        def is_visible() -> bool:
            try:
                return missing in admin.consumer_connection(group).subscription_table
            except LibraError:
                return False

        cluster.wait_until(is_visible, "no broker knows the group", within_s=PATIENCE_S)
        cluster.create_topic(missing, 1)
        cluster.send(topic=missing, body="late")
        inbox.wait_count(1)
    assert len(errors) == 1


def test_groups_without_a_retry_topic_are_listed(cluster: Cluster) -> None:
    """A program that assigns its queues commits for its group, and declares it to no broker."""
    topic, group = cluster.fresh_name("Assigned"), cluster.fresh_name("assigns")
    cluster.create_topic(topic, 1)
    cluster.send(topic=topic, body="x")
    with Admin(namesrv=cluster.namesrv) as admin:
        with Consumer(group=group, namesrv=cluster.namesrv, consume_from="earliest") as member:
            member.assign(member.queues(topic))
            member.getmany(timeout_ms=30_000)
            member.commit()
            assert group in admin.groups()
        assert group in admin.groups()
        (progress,) = admin.consume_stats(group).values()
        assert progress.consumer_offset == 1


def test_our_messages_arrive_at_javas_consumer(cluster: Cluster) -> None:
    """Messages of every kind of send arrive complete and with the id that the send returned."""
    topic = cluster.fresh_name("Ours")
    cluster.create_topic(topic, QUEUES)
    told = {}

    def message(body: str) -> Message:
        return Message(
            topic, body.encode(), tags="TagA", keys=("key-1", "key-2"), properties={"colour": "grün"}, flag=7
        )

    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        told["one ü"] = producer.send(message("one ü"))
        told["hash"] = producer.send(message("hash"), selector=by_hash("N14228"))
        queue = MessageQueue(topic, cluster.broker_name, 2)
        told["queue"] = producer.send(message("queue"), queue=queue)
        assert told["queue"].queue == queue
        large = "compressed " * 1_000
        told[large] = producer.send(message(large))
        batch = [message(f"batch {i}") for i in range(3)]
        told |= {
            each.body.decode(): sent for each, sent in zip(batch, producer.send_batch(batch), strict=True)
        }
        for i in range(50):
            body = f"nowait {i}"
            producer.send_nowait(message(body), lambda sent, body=body: told.__setitem__(body, sent))
        producer.flush()
        producer.send_oneway(message("oneway"))

    java = cluster.consumer(cluster.fresh_name("group"), topic)
    received = {delivery["body"]: delivery for delivery in java.wait_count(58, "message")}
    assert received.keys() == told.keys() | {"oneway"}
    for body, delivery in received.items():
        assert (delivery["tags"], delivery["keys"], delivery["flag"]) == ("TagA", "key-1 key-2", 7)
        assert delivery["properties"]["colour"] == "grün"
        if body != "oneway":
            assert (delivery["queueId"], delivery["offset"]) == (
                told[body].queue.queue_id,
                told[body].queue_offset,
            )
            assert delivery["msgId"] == told[body].message_id


def test_the_first_send_creates_the_topic(cluster: Cluster) -> None:
    """The broker's configuration allows this; the topic gets four queues."""
    topic = cluster.fresh_name("Created")
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send(Message(topic, b"x"))
    inbox = Inbox()
    with consumer(cluster, cluster.fresh_name("group"), topic, inbox) as member:
        inbox.wait_count(1)
        assert len([queue for queue in member.assignment() if queue.topic == topic]) == 4


def test_we_receive_javas_messages(cluster: Cluster) -> None:
    """We receive only our tags; bodies are decompressed, and keys and properties are complete."""
    topic = cluster.fresh_name("Theirs")
    cluster.create_topic(topic, QUEUES)
    sent = cluster.send(
        topic=topic, body="compressed ", repeat=1_000, tags="Aa", keys="k", properties={"colour": "blau"}
    )
    cluster.send(topic=topic, body="the same hash", tags="BB")
    cluster.send(topic=topic, body="another", tags="C")
    cluster.send(topic=topic, body="no tag")
    cluster.send(kind="batch", topic=topic, messages=[{"body": f"b{i}", "tags": "D"} for i in range(3)])
    inbox = Inbox()
    with consumer(cluster, cluster.fresh_name("group"), topic, inbox, "Aa || D"):
        inbox.wait_count(4)
    assert inbox.bodies() == {"compressed " * 1_000, "b0", "b1", "b2"}
    first = next(message for message in inbox.messages if message.tags == "Aa")
    assert (first.message_id, first.queue_offset) == (sent["msgId"], sent["offset"])
    assert (first.keys, first.properties["colour"], first.reconsume_times) == (("k",), "blau", 0)
    assert first.broker_name == cluster.broker_name


def test_an_idle_consumer_gets_a_message_at_once(cluster: Cluster) -> None:
    """The broker holds its pulls and answers them when a message arrives."""
    topic = cluster.fresh_name("Idle")
    cluster.create_topic(topic, 2)
    inbox = Inbox()
    with (
        consumer(cluster, cluster.fresh_name("group"), topic, inbox),
        Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as p,
    ):
        p.send(Message(topic, b"first"))
        inbox.wait_count(1)
        for i in range(5):
            p.send(Message(topic, b"%d" % i))
            inbox.wait(lambda count=i + 2: len(inbox.messages) == count, within_s=HELD_S)


def test_a_new_member_resumes_where_the_last_one_stopped(cluster: Cluster) -> None:
    """Ours resumes after ours, Java's after ours, ours after Java's: handled messages are committed."""
    topic, group = cluster.fresh_name("Going"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    cluster.begin_offsets(group, topic)
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:

        def send(what: str) -> set[str]:
            bodies = {f"{what} {i}" for i in range(20)}
            for body in bodies:
                producer.send(Message(topic, body.encode()))
            return bodies

        for turn in ("ours", "ours again"):
            sent = send(turn)
            inbox = Inbox()
            with consumer(cluster, group, topic, inbox):
                inbox.wait_count(20)
            assert inbox.bodies() == sent

        sent = send("java's")
        java = cluster.consumer(group, topic)
        assert {delivery["body"] for delivery in java.wait_count(20, "message")} == sent
        cluster.wait_committed(group, topic, 60)  # Java's shutdown commits one way, and may lose it.
        java.finish()

        sent = send("at last")
        inbox = Inbox()
        with consumer(cluster, group, topic, inbox):
            inbox.wait_count(20)
            # A stop while members change who allocates may leave its last offsets uncommitted.
            cluster.wait_committed(group, topic, 80)
        assert inbox.bodies() == sent
    cluster.wait_stored(topic, 80)
    with Admin(namesrv=cluster.namesrv) as admin:
        offsets = [offset for queue, offset in admin.consume_stats(group).items() if queue.topic == topic]
    assert len(offsets) == QUEUES
    assert all(offset.broker_offset == offset.consumer_offset for offset in offsets)


def test_a_message_that_always_fails_becomes_a_dead_letter(cluster: Cluster) -> None:
    """With no retries allowed this happens at once, and the offset moves past it."""
    topic, group = cluster.fresh_name("Dead"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send(Message(topic, b"never"))
    inbox = Inbox(accept=False)
    member = PushConsumer(
        group=group, namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0
    )
    member.subscribe(topic, "*", inbox)
    with member, Admin(namesrv=cluster.namesrv) as admin:
        inbox.wait_count(1)
        dead_letters = f"%DLQ%{group}"
        cluster.wait_until(
            lambda: cluster.route(dead_letters) is not None, "no dead letter queue", within_s=PATIENCE_S
        )
        cluster.wait_until(
            lambda: sum(ends.max_offset for ends in admin.topic_stats(dead_letters).values()) == 1,
            "no dead letter",
            within_s=PATIENCE_S,
        )
    assert len(inbox.messages) == 1


def test_a_failed_message_is_redelivered(cluster: Cluster) -> None:
    """It returns through the retry topic after the first delay, 10 s, once we have found the new topic."""
    topic, group = cluster.fresh_name("Retried"), cluster.fresh_name("group")
    cluster.create_topic(topic, 1)
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        sent = producer.send(Message(topic, b"again", tags="a", keys="k"))
    tries: list[MessageExt] = []
    again = threading.Event()

    def handle(messages: list[MessageExt]) -> bool:
        tries.extend(messages)
        if tries[-1].reconsume_times:
            again.set()
        return bool(tries[-1].reconsume_times)

    member = PushConsumer(group=group, namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    member.subscribe(topic, "a", handle)
    with member:
        assert again.wait(PATIENCE_S)
    first, second = tries
    assert (second.topic, second.body, second.tags, second.keys) == (topic, b"again", "a", ("k",))
    assert (second.message_id, second.reconsume_times) == (sent.message_id, 1)
    assert first.message_id == second.message_id


def test_java_and_we_share_a_group(cluster: Cluster) -> None:
    """Both compute the same allocation: no message is redelivered, and the last member gets all queues."""
    topic, group = cluster.fresh_name("Mixed"), cluster.fresh_name("group")
    cluster.create_topic(topic, 8)
    inbox = Inbox()
    ours = consumer(cluster, group, topic, inbox)
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        with ours:
            java = cluster.consumer(group, topic)
            name = cluster.broker_name

            def shares() -> tuple[set[str], set[str]]:
                mine = {f"{name}:{queue.queue_id}" for queue in ours.assignment() if queue.topic == topic}
                return mine, set(java.of("queues", topic=topic)[-1]["queues"])

            cluster.wait_until(
                lambda: list(map(len, shares())) == [4, 4], "no even share", within_s=PATIENCE_S
            )
            mine, theirs = shares()
            assert mine | theirs == {f"{name}:{queue_id}" for queue_id in range(8)}
            for i in range(40):
                producer.send(Message(topic, f"both {i}".encode()))

            def received() -> Counter[str]:
                bodies = [message.body.decode() for message in list(inbox.messages)]
                return Counter(bodies + [delivery["body"] for delivery in java.of("message")])

            cluster.wait_until(lambda: len(received()) == 40, "not all of both", within_s=PATIENCE_S)
            assert set(received().values()) == {1}
            assert inbox.messages
            assert java.of("message")
        cluster.wait_until(lambda: len(shares()[1]) == 8, "not all left", within_s=PATIENCE_S)
        for i in range(8):
            producer.send(Message(topic, f"alone {i}".encode()))
        cluster.wait_until(
            lambda: {f"alone {i}" for i in range(8)} <= set(received()),
            "not all of alone",
            within_s=PATIENCE_S,
        )


def test_our_members_join_and_leave_while_messages_flow(cluster: Cluster) -> None:
    """Every message is delivered at least once, and exactly once if a coordinator hands queues over.

    At Apache's broker a new owner may begin before the previous one has committed.
    """
    topic, group = cluster.fresh_name("Flow"), cluster.fresh_name("group")
    cluster.create_topic(topic, 8)
    inbox = Inbox()
    done = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            while not done.wait(0.002):
                producer.send(Message(topic, b"%d" % sent))
                sent += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        members = [consumer(cluster, group, topic, inbox) for _ in range(3)]

        def owned(count: int) -> None:
            """Wait until the running members own each queue once."""
            running = members[:count]
            cluster.wait_until(
                lambda: (
                    sorted(queue for each in running for queue in each.assignment() if queue.topic == topic)
                    == [MessageQueue(topic, cluster.broker_name, number) for number in range(8)]
                ),
                f"{count} members do not own the queues",
                within_s=PATIENCE_S,
            )

        for count, member in enumerate(members, start=1):
            member.start()
            owned(count)
        for count in (2, 1):
            members[count].stop()
            owned(count)
    finally:
        done.set()
        sender.join()
    inbox.wait(lambda: len(inbox.bodies()) == sent)
    members[0].stop()
    if cluster.kind == "libra":
        assert len(inbox.messages) == sent
