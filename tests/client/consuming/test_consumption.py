"""Tests of the consumption: what happens after a handler has failed."""

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.logs import LINES_MAX
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import RETRY, SILENT, Conversation, found, q
from tests.client.consuming.examples import route


def test_a_failed_message_is_sent_back_and_then_done_with():
    """The committed offset does not pass the message until the broker has it."""
    talk = Conversation(batch_size=2).pulling()
    talk.pulled(q(0), found(0, 1))
    (delivery,) = talk.deliveries()
    talk.handled((delivery, HandlerOutcome.LATER))
    assert [(effect.message.queue_offset, effect.address) for effect in talk.of(rq.SendBack)] == [
        (0, "a:1"),
        (1, "a:1"),
    ]
    first, second = talk.of(rq.SendBack)
    second.ask.done(None, 0)
    assert talk.offset(q(0)) == 0
    first.ask.done(None, 0)
    assert talk.offset(q(0)) == 2


def test_where_the_send_back_is_refused_a_copy_goes_to_the_retry_topic():
    """If that fails too, the message is handled here again in five seconds."""
    talk = Conversation().pulling()
    talk.routes({RETRY: route(1)})
    talk.members("me", topics=("T", RETRY))
    talk.pulled(q(0), found(0))
    (delivery,) = talk.deliveries()
    talk.handled((delivery, HandlerOutcome.LATER))
    message = delivery.messages[0]
    (copy,) = talk._(talk.of(rq.SendBack)[0].ask.done(SILENT, 0))
    assert (copy.queue, copy.address) == (q(0, topic=RETRY), "a:1")
    assert talk._(copy.ask.done(SILENT, 0)) == []
    assert message.reconsume_times == 1
    assert not any(isinstance(effect, fx.Deliver) for effect in talk.at(4999))
    talk.at(5000)
    (again,) = talk.deliveries()
    assert list(again.messages) == [message]
    talk.handled((again, HandlerOutcome.SUCCESS))
    assert talk.offset(q(0)) == 1


def test_a_retried_message_has_its_original_topic():
    """RETRY_TOPIC names it; a batch never mixes topics."""
    talk = Conversation(batch_size=10)
    talk.start()
    talk.routes({"T": None, RETRY: route(1)})
    talk.heartbeat()
    talk.members("me", topics=(RETRY,))
    talk.committed(q(0, topic=RETRY), 0)
    reply, messages = found(0, 1, 2, topic=RETRY)
    for message, topic in zip(messages, ("T", "T", "U"), strict=True):
        message.properties["RETRY_TOPIC"] = topic
    talk.pulled(q(0, topic=RETRY), (reply, messages))
    assert [[m.topic for m in each.messages] for each in talk.deliveries()] == [["T", "T"], ["U"]]


def test_messages_of_foreign_topics_are_logged_a_few_times_and_counted(caplog):
    """The broker does not pass them on, and one log line for each filled the disk."""
    talk = Conversation(batch_size=1).pulling()
    talk.pulled(q(0), found(*range(32)))
    talk.handled(*((delivery, HandlerOutcome.FOREIGN) for delivery in talk.deliveries()))
    assert len(talk.of(rq.SendBack)) == 32
    assert len([line for line in caplog.messages if "a topic without a handler" in line]) == LINES_MAX
