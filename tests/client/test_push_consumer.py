"""Tests of the push consumer at a broker that can misbehave, with handlers on threads and on the loop."""

import asyncio
import random
import threading
from collections import Counter

import pytest

from libramq.client import ConsumeFrom, PushConsumer
from libramq.client.consuming.pulling.pulling import Pulling
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, InvalidName, LocalProtocolError, NameServerUnavailable
from libramq.message.queue import MessageQueue
from libramq.remoting.command import Command
from libramq.remoting.frame import encode_frame
from tests.client.fake_cluster import SENDS, FakeBroker, FakeNameServer

RETRY = "%RETRY%g"


def consumer(namesrv, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 50} | options
    return PushConsumer(group="g", namesrv=namesrv.address, randomness=random.Random(1), **options)


class Inbox:
    """A handler that keeps its messages; `verdict` derives its result from the first one."""

    def __init__(self, watch, verdict=lambda message: None):
        self.bodies = []
        self.batches = []
        self.threads = set()
        self._watch = watch
        self._verdict = verdict

    def __call__(self, messages):
        verdict = self._verdict(messages[0])
        self.batches.append(messages)
        self.bodies += [message.body for message in messages]
        self.threads.add(threading.current_thread())
        self._watch.touch()
        return verdict


async def test_a_commit_that_is_refused_time_and_again_is_logged_once(namesrv, broker, watch, caplog):
    """An acting slave takes no commits of members, and each repeats its own ten times a second."""
    broker.put("T", 0, b"x")
    broker.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SYSTEM_BUSY, times=5)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", Inbox(watch))
    async with reader:
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 1)
        assert caplog.text.count("commit failed") == 1
        broker.put("T", 0, b"y")
        broker.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SYSTEM_BUSY)
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 2)
    assert caplog.text.count("commit failed") == 2


async def test_every_message_is_handled_once(namesrv, broker, watch):
    """This holds for stored messages and for new ones."""
    for number in range(40):
        broker.put("T", number % 4, b"%d" % number)
    inbox = Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", inbox)
    async with reader:
        await watch.until(lambda: len(inbox.bodies) == 40)
        broker.put("T", 2, b"late")
        await watch.until(lambda: len(inbox.bodies) == 41)
        owned = [queue for queue in await reader.assignment() if queue.topic == "T"]
        assert owned == [MessageQueue("T", "a", number) for number in range(4)]
    assert Counter(inbox.bodies) == Counter([b"%d" % n for n in range(40)] + [b"late"])
    assert broker.offsets["g", "T", 2] == 11


async def test_an_answer_that_cannot_be_processed_to_its_end_is_neither_lost_nor_taken_twice(
    namesrv, broker, watch, monkeypatch, caplog
):
    """A pull's messages went to a handler before an internal failure; then reading continues."""
    pull, failures = Pulling.pull, []

    def fail_once(self, owned, now_ms):
        if owned.held and not failures:
            failures.append(owned.queue)
            raise ZeroDivisionError
        pull(self, owned, now_ms)

    monkeypatch.setattr(Pulling, "pull", fail_once)
    inbox = Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", inbox)
    broker.put("T", 0, b"x")
    async with reader:
        await watch.until(lambda: inbox.bodies)
        broker.put("T", 0, b"y")
        await watch.until(lambda: len(inbox.bodies) == 2)
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 2)
    assert inbox.bodies == [b"x", b"y"]
    assert caplog.text.count("a response of") == 1


async def test_offsets_are_committed_periodically(namesrv, broker, watch):
    """The commit does not wait until the consumer stops."""
    broker.put("T", 0, b"x")
    reader = consumer(namesrv, persist_ms=20)
    reader.subscribe("T", "*", Inbox(watch))
    async with reader:
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 1)


async def test_a_new_member_resumes_where_the_last_one_stopped(namesrv, broker, watch):
    """The last one commits before it leaves."""
    inbox = Inbox(watch)
    for turn in range(3):
        broker.put("T", 0, b"%d" % turn)
        reader = consumer(namesrv, persist_ms=60_000)
        reader.subscribe("T", "*", inbox)
        async with reader:
            await watch.until(lambda turn=turn: len(inbox.bodies) == turn + 1)
    assert inbox.bodies == [b"0", b"1", b"2"]


async def test_batches_have_the_requested_size(namesrv, broker, watch):
    """Each batch has messages of one queue."""
    for number in range(10):
        broker.put("T", 0, b"%d" % number)
    inbox = Inbox(watch)
    reader = consumer(namesrv, batch_size=4)
    reader.subscribe("T", "*", inbox)
    async with reader:
        await watch.until(lambda: len(inbox.bodies) == 10)
    assert sorted(len(batch) for batch in inbox.batches) == [2, 4, 4]


async def test_a_blocking_handler_blocks_only_itself(namesrv, broker, watch):
    """Two run at a time on threads of their own, and heartbeats continue."""
    both = threading.Barrier(2, timeout=60)
    for number in range(2):
        broker.put("T", number, b"x")
    inbox = Inbox(watch, lambda message: both.wait() and None)
    reader = consumer(namesrv, threads=2, heartbeat_ms=100)
    reader.subscribe("T", "*", inbox)
    async with reader:
        await watch.until(lambda: len(inbox.bodies) == 2)
        before = broker.count(RequestCode.HEART_BEAT)
        await watch.until(lambda: broker.count(RequestCode.HEART_BEAT) > before + 1)
    assert len(inbox.threads) == 2
    assert threading.main_thread() not in inbox.threads


async def test_coroutine_handlers_run_on_the_callers_loop(namesrv, broker, watch):
    """Several run at a time, up to the limit."""
    running, most, done = 0, 0, []
    gate = asyncio.Event()

    async def handle(messages):
        nonlocal running, most
        running += 1
        most = max(most, running)
        watch.touch()
        await gate.wait()
        running -= 1
        done.extend(messages)
        watch.touch()

    for number in range(8):
        broker.put("T", number % 4, b"x")
    reader = consumer(namesrv, threads=3)
    reader.subscribe("T", "*", handle)
    async with reader:
        await watch.until(lambda: most == 3)
        gate.set()
        await watch.until(lambda: len(done) == 8)
    assert most == 3


@pytest.mark.parametrize("how", ["false", "raises", "async raises"])
async def test_a_failed_message_is_sent_back(namesrv, broker, watch, how):
    """The request names its place, and its offset is committed then."""
    broker.put("T", 1, b"bad")

    def refuse(messages):
        if how == "raises":
            raise ZeroDivisionError
        return False

    async def refuse_async(messages):
        raise ZeroDivisionError

    reader = consumer(namesrv)
    reader.subscribe("T", "*", refuse_async if how == "async raises" else refuse)
    async with reader:
        await watch.until(lambda: broker.sent_back)
        await watch.until(lambda: broker.offsets.get(("g", "T", 1)) == 1)
    assert broker.sent_back == [
        {
            "offset": "1000", "group": "g", "delayLevel": "0", "originMsgId": "?", "originTopic": "T",
            "maxReconsumeTimes": "16",
        }
    ]  # fmt: skip


async def test_a_refused_send_back_becomes_a_copy_in_the_retry_topic(namesrv, broker, watch):
    """The copy is redelivered from there under its own topic."""
    broker.put("T", 0, b"bad")
    broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
    broker.topics[RETRY] = 1
    inbox = Inbox(watch, lambda message: message.reconsume_times > 0)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", inbox)
    async with reader:
        await watch.until(lambda: broker.count(*SENDS))
    (copy,) = broker.of(*SENDS)
    assert (copy.ext["b"], copy.ext["j"], copy.body) == (RETRY, "1", b"bad")


async def test_retried_messages_have_their_original_topic(namesrv, broker, watch):
    """The handler of that topic gets them."""
    broker.topics[RETRY] = 1
    broker.put(RETRY, 0, b"again", "RETRY_TOPIC\x01T\x02", reconsume_times=1)
    inbox = Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", inbox)
    async with reader:
        await watch.until(lambda: inbox.bodies)
    (message,) = inbox.batches[0]
    assert (message.topic, message.reconsume_times) == ("T", 1)


async def test_each_topic_has_its_handler(namesrv, broker, watch):
    """Each also has its own tags."""
    broker.topics["U"] = 1
    broker.put("T", 0, b"t", "TAGS\x01a\x02")
    broker.put("U", 0, b"not", "TAGS\x01b\x02")
    broker.put("U", 0, b"u", "TAGS\x01a\x02")
    first, second = Inbox(watch), Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", first)
    reader.subscribe("U", "a || c", second)
    async with reader:
        await watch.until(lambda: first.bodies and second.bodies)
    assert (first.bodies, second.bodies) == ([b"t"], [b"u"])


async def test_two_members_share_the_queues(namesrv, broker, watch):
    """They share them anew when the second joins and when it leaves. No message is handled twice."""
    changes = []

    def listener(name, kind):
        return lambda queues: (changes.append((name, kind, {q.queue_id for q in queues})), watch.touch())

    def member(name):
        inbox = Inbox(watch)
        reader = consumer(
            namesrv, on_assigned=listener(name, "assigned"), on_revoked=listener(name, "revoked")
        )
        reader.subscribe("T", "*", inbox)
        return reader, inbox

    first, first_inbox = member("first")
    second, second_inbox = member("second")

    async def owned(reader):
        return {queue.queue_id for queue in await reader.assignment() if queue.topic == "T"}

    async with first:
        await watch.until(lambda: broker.count(RequestCode.PULL_MESSAGE) >= 4)
        async with second:
            await watch.until(lambda: any(change[:2] == ("second", "assigned") for change in changes))
            await watch.until(lambda: any(change[:2] == ("first", "revoked") for change in changes))
            shares = await owned(first), await owned(second)
            assert sorted(map(len, shares)) == [2, 2]
            assert shares[0] | shares[1] == {0, 1, 2, 3}
            for number in range(20):
                broker.put("T", number % 4, b"%d" % number)
            await watch.until(lambda: len(first_inbox.bodies + second_inbox.bodies) == 20)
        for number in range(20, 24):
            broker.put("T", number % 4, b"%d" % number)
        await watch.until(lambda: len(first_inbox.bodies + second_inbox.bodies) >= 24)
    assert sorted(map(int, first_inbox.bodies + second_inbox.bodies)) == list(range(24))
    assert first_inbox.bodies
    assert second_inbox.bodies


async def test_a_refused_offset_is_replaced_by_the_brokers(namesrv, broker, watch):
    """After OFFSET_ILLEGAL, deleted messages are skipped."""
    broker.min_offsets["T", 0] = 100
    broker.put("T", 0, b"first there is")
    inbox = Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", inbox)
    async with reader:
        await watch.until(lambda: inbox.bodies)
    assert broker.offsets["g", "T", 0] == 101


@pytest.mark.parametrize(
    ("consume_from", "expected"),
    [(ConsumeFrom.LAST_OFFSET, [b"new"]), (ConsumeFrom.TIMESTAMP, [b"2", b"new"])],
)
async def test_a_new_group_begins_at_the_configured_position(namesrv, broker, watch, consume_from, expected):
    """The position is the end, or a time."""
    for number in range(3):
        broker.put("T", 0, b"%d" % number)
    inbox = Inbox(watch)
    reader = consumer(namesrv, consume_from=consume_from, consume_timestamp_ms=2)
    reader.subscribe("T", "*", inbox)
    async with reader:
        await watch.until(lambda: broker.count(RequestCode.PULL_MESSAGE) >= 4)
        broker.put("T", 0, b"new")
        await watch.until(lambda: len(inbox.bodies) == len(expected))
    assert inbox.bodies == expected


async def test_a_broker_that_restarts_is_found_again(start, watch):
    """It has the same address and has forgotten the member, which sends it a heartbeat again."""
    broker = await start(FakeBroker("a", T=1))
    namesrv = await start(FakeNameServer(broker))
    inbox = Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", inbox)
    async with reader:
        broker.put("T", 0, b"before")
        await watch.until(lambda: inbox.bodies == [b"before"])
        port = int(broker.address.rpartition(":")[2])
        await broker.close()
        broker.held.clear()
        heartbeats = broker.count(RequestCode.HEART_BEAT)
        await broker.start(port)
        broker.put("T", 0, b"after")
        await watch.until(lambda: inbox.bodies == [b"before", b"after"])
        assert broker.count(RequestCode.HEART_BEAT) > heartbeats


async def test_a_new_topic_is_found(namesrv, broker, watch):
    """The consumer finds it within seconds of its creation, without a restart."""
    inbox = Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("New", "*", inbox)
    async with reader:
        await watch.until(lambda: namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 2)
        broker.topics["New"] = 1
        broker.put("New", 0, b"x")
        await watch.until(lambda: inbox.bodies)


async def test_stopping_waits_for_handlers_and_commits_what_they_did(namesrv, broker, watch):
    """It commits exactly that, whenever the stop comes."""
    gate = threading.Event()
    started = []

    def slow(messages):
        started.append(messages[0].body)
        watch.touch()
        assert gate.wait(60)

    for number in range(1000):
        broker.put("T", 0, b"%d" % number)
    reader = consumer(namesrv, threads=1, persist_ms=60_000)
    reader.subscribe("T", "*", slow)
    await reader.start()
    await watch.until(lambda: started)
    stopping = asyncio.create_task(reader.stop())
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert 1 <= len(started) == broker.offsets["g", "T", 0]
    goodbye = broker.of(RequestCode.UNREGISTER_CLIENT)[0]
    assert goodbye.ext == {"clientID": reader.client_id, "consumerGroup": "g"}
    assert broker.requests[-1] is goodbye


@pytest.mark.parametrize("answers", [True, False], ids=["answered", "unanswered"])
async def test_a_member_leaves_a_broker_once_its_heartbeat_is_answered(
    namesrv, broker, watch, monkeypatch, answers
):
    """Apache's brokers may handle the two in any order, and keep a member whose heartbeat comes last."""
    if answers:
        monkeypatch.setattr("libramq.client.consuming.known_brokers.LEAVE_TIMEOUT_MS", 60_000)
    inbox = Inbox(watch)
    reader = consumer(namesrv, heartbeat_ms=100, persist_ms=60_000)
    reader.subscribe("T", "*", inbox)
    await reader.start()
    broker.put("T", 0, b"x")
    await watch.until(lambda: inbox.bodies)
    answer, held, answered = broker.heart_beat, [], []
    broker.heart_beat = lambda *heartbeat: held.append(heartbeat)
    await watch.until(lambda: held)

    def answer_later():
        broker.heart_beat = answer
        for heartbeat in held:
            answered.append(broker.count(RequestCode.UNREGISTER_CLIENT))
            answer(*heartbeat)

    stopping = asyncio.create_task(reader.stop())
    await watch.until(lambda: broker.offsets.get(("g", "T", 0)))
    if answers:
        asyncio.get_running_loop().call_later(0.1, answer_later)
    await stopping
    assert broker.count(RequestCode.UNREGISTER_CLIENT) == 1
    assert set(answered) == ({0} if answers else set())


async def test_stopping_does_not_wait_for_ever(namesrv, broker, watch):
    """A handler that hangs is abandoned, and its message is not committed."""
    gate = threading.Event()
    started = []

    def stuck(messages):
        started.append(messages[0].body)
        watch.touch()
        gate.wait(60)

    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    reader.subscribe("T", "*", stuck)
    await reader.start()
    try:
        await watch.until(lambda: started)
        async with asyncio.timeout(50):
            await reader.stop(timeout_ms=100)
    finally:
        gate.set()
    assert broker.offsets.get(("g", "T", 0), 0) == 0
    assert broker.count(RequestCode.UNREGISTER_CLIENT) == 1


async def test_unknown_requests_are_answered(namesrv, broker, watch):
    """A broker that sends a request that consumers do not serve gets an error."""
    answers = []
    broker.received, received = (
        lambda peer, commands: (
            answers.extend(each for each in commands if each.is_response),
            received(peer, [each for each in commands if not each.is_response]),
            watch.touch(),
        ),
        broker.received,
    )
    reader = consumer(namesrv)
    reader.subscribe("T", "*", Inbox(watch))
    async with reader:
        await watch.until(lambda: broker.members["g"])
        peer = broker.members["g"][reader.client_id]
        peer.write(encode_frame(Command(code=RequestCode.PROBE, opaque=77)))
        await watch.until(lambda: answers)
    assert (answers[0].opaque, answers[0].code) == (77, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


async def test_without_a_name_server_it_does_not_start():
    """The error is one clear line, and a later start succeeds."""
    reader = PushConsumer(group="g", namesrv="127.0.0.1:1")
    reader.subscribe("T", "*", print)
    for _ in range(2):
        with pytest.raises(NameServerUnavailable, match="NAMESRV_ADDR"):
            await reader.start()
    await reader.stop()


async def test_mistakes_are_named(namesrv):
    """Each is reported in one clear line."""
    with pytest.raises(ConfigError, match="AVG"):
        consumer(namesrv, strategy="NONE")
    with pytest.raises(ConfigError, match="no such option: session; did you mean session_ms"):
        consumer(namesrv, session=1)
    with pytest.raises(ConfigError, match="threads"):
        consumer(namesrv, threads=0)
    reader = consumer(namesrv)
    with pytest.raises(InvalidName):
        reader.subscribe("../x", "*", print)
    with pytest.raises(ConfigError, match="names no tag"):
        reader.subscribe("T", "||", print)
    with pytest.raises(ConfigError, match="not a function"):
        reader.subscribe("T", "*", "print")
    reader.subscribe("T", "*", print)
    async with reader:
        with pytest.raises(LocalProtocolError, match="already"):
            await reader.start()


async def test_pulls_commit_no_offsets(namesrv, broker, watch):
    """In a broker with many threads, such a pull could overtake the last commit."""
    inbox = Inbox(watch)
    reader = consumer(namesrv)
    reader.subscribe("T", "*", inbox)
    async with reader:
        for number in range(3):
            broker.put("T", 0, b"x")
            await watch.until(lambda count=number + 1: len(inbox.bodies) == count)
    pulls = broker.of(RequestCode.PULL_MESSAGE)
    assert len(pulls) >= 3
    assert all(int(pull.ext["sysFlag"]) & 1 == 0 for pull in pulls)
    assert broker.offsets["g", "T", 0] == 3
