"""Priority messages (5.4): a priority is a queue, and a topic of priorities is popped from the highest."""

import pytest

from libramq.broker.messages.sending import prioritised
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message import decode_records
from libramq.message.properties import properties_to_text
from libramq.remoting import headers as h
from libramq.remoting.headers import PopMessageHeader
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

PRIORITY = "_SYS_MSG_PRIORITY_"


def create(talk: Conversation, *, message_type: str = "PRIORITY", queues: int = 4) -> None:
    header = h.CreateTopicHeader(
        topic="T", default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG", attributes=f"+message.type={message_type}",
    )  # fmt: skip
    assert talk.ask(FakePeer(), R.UPDATE_AND_CREATE_TOPIC, header).code == C.SUCCESS


def send(talk: Conversation, body: str, priority: object, **properties: str) -> int:
    """Send a message, and return its queue."""
    text = properties_to_text({PRIORITY: str(priority), **properties})
    reply = talk.send(FakePeer(), body=body.encode(), properties=text)
    assert reply.code == C.SUCCESS, reply
    return int(reply.ext["queueId"])


def pop(talk: Conversation, count: int = 32, *, queue_id: int = -1) -> list[str]:
    header = PopMessageHeader(
        consumer_group="G", topic="T", queue_id=queue_id, max_msg_nums=count, invisible_time=60_000,
        poll_time=0, born_time=0, init_mode=0, exp_type="TAG", exp="*",
    )  # fmt: skip
    reply = talk.ask(FakePeer(), R.POP_MESSAGE, header)
    return [each.body.decode() for each in decode_records(reply.body)] if reply.code == C.SUCCESS else []


def test_the_highest_priority_is_popped_first(talk: Conversation) -> None:
    """Messages of one priority keep their order; later messages of a higher priority overtake."""
    create(talk)
    for _ in range(10):  # From queue to queue in turn, as other topics are popped, this would fail soon.
        sent = [send(talk, f"{number}", number) for number in (0, 2, 1, 2, 0, 3)]
        assert sent == [0, 2, 1, 2, 0, 3]
        assert pop(talk, 2) == ["3", "2"]
        assert send(talk, "4", 3) == 3
        assert pop(talk) == ["4", "2", "1", "0", "0"]


def test_priorities_beyond_the_last_queue_are_its(talk: Conversation) -> None:
    create(talk)
    assert [send(talk, "x", priority) for priority in (4, 99, 2_147_483_647)] == [3, 3, 3]


def test_a_topic_of_another_type_is_popped_as_ever(talk: Conversation) -> None:
    """The priority is a queue there as well: Apache's broker ignores the topic's type when it stores."""
    create(talk, message_type="NORMAL")
    popped = []
    for _ in range(10):
        assert send(talk, "low", 0) == 0
        assert send(talk, "high", 3) == 3
        popped += pop(talk, 1)
    assert sorted(popped) == ["high"] * 5 + ["low"] * 5, "the queues are popped in turn"


def test_one_queue_is_popped_alone(talk: Conversation) -> None:
    create(talk)
    send(talk, "low", 0)
    send(talk, "high", 3)
    assert pop(talk, queue_id=0) == ["low"]


def test_messages_that_come_again_do_not_overtake(talk: Conversation) -> None:
    """BrokerConfig.popFromRetryProbabilityForPriority is 0."""
    create(talk)
    for number in range(20):
        send(talk, f"again {number}", 3)
    assert len(pop(talk)) == 20
    talk.advance(62_000)
    for _ in range(30):
        send(talk, "new", 0)
        assert pop(talk, 1) == ["new"]
    assert sorted(pop(talk)) == sorted(f"again {number}" for number in range(20))


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({PRIORITY: "2"}, (2, True)),
        ({PRIORITY: "9"}, (3, True)),
        ({PRIORITY: "-1"}, (1, True)),
        ({PRIORITY: "x"}, (1, True)),
        ({PRIORITY: "2147483648"}, (1, True)),
        ({PRIORITY: "9" * 30}, (1, True)),
        ({PRIORITY: "2", "DELAY": "3"}, (1, False)),
        ({PRIORITY: "2", "TIMER_DELIVER_MS": "1"}, (1, False)),
        ({PRIORITY: "2", "__SHARDINGKEY": "k"}, (1, False)),
        ({PRIORITY: "2", "TRAN_MSG": "true"}, (1, False)),
        ({PRIORITY: "2", "TRAN_MSG": "false"}, (2, True)),
        ({"A" + PRIORITY: "2"}, (1, True)),
    ],
)
def test_a_message_is_of_one_type(properties: dict[str, str], expected: tuple[int, bool]) -> None:
    """A message of another type loses its priority."""
    queue_id, text = prioritised(properties_to_text(properties), 1, 4)
    assert (queue_id, PRIORITY in text) == expected
