"""Tests of broadcasting: a member takes every queue, keeps its own offsets, and queries no coordinator."""

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.life import Phase
from libramq.client.options import ConsumeFrom
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, nothing, q
from tests.client.consuming.examples import route


class Broadcasting(Conversation):
    """A conversation with a member that broadcasts."""

    def __init__(self, **settings):
        super().__init__(broadcasting=True, **settings)

    def reading(self, queues=1, offset=0):
        self.start()
        self.routes(T=route(queues))
        self.heartbeat()
        for effect in self.of(fx.ReadOffset):
            self.committed(effect.queue, offset)
        return self


def test_a_member_takes_every_queue_and_reads_its_own_offsets():
    """It needs no member list and no retry topic, and fetches no offsets from brokers."""
    talk = Broadcasting()
    assert talk.start() == [rq.FetchRoutes(("T",))]
    (heartbeat,) = talk.routes(T=route(3))
    (consumer,) = heartbeat.data.consumer_data_set
    assert consumer.message_model == "BROADCASTING"
    assert [each.topic for each in consumer.subscription_data_set] == ["T"]
    talk.heartbeat()
    assert [effect.queue for effect in talk.of(fx.ReadOffset)] == [q(0), q(1), q(2)]
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0), q(1), q(2)))]
    assert talk.of(rq.FetchConsumerList) == []
    (pull,) = talk.committed(q(0), 7)
    assert pull.offset == 7


def test_without_an_offset_it_starts_at_the_configured_position():
    """The position is the end of the queue here."""
    talk = Broadcasting(consume_from=ConsumeFrom.LAST_OFFSET).reading(1, offset=None)
    assert [effect.queue for effect in talk.of(rq.MaxOffset)] == [q(0)]


def test_changed_offsets_are_written_together():
    """They are written every period, and when the member stops."""
    talk = Broadcasting(persist_ms=100).reading(2)
    for queue in (q(0), q(1)):
        talk.pulled(queue, found(0, 1))
        first, second = talk.deliveries()
        talk.handled(
            (first, HandlerOutcome.SUCCESS), *([(second, HandlerOutcome.SUCCESS)] if queue == q(0) else [])
        )
    assert talk.at(100) == [fx.StoreOffsets(((q(0), 2), (q(1), 1)))]
    assert talk.at(200) == []


def test_a_failed_message_is_dropped():
    """Upstream does the same: a send-back would redeliver it to the group, not to this member."""
    talk = Broadcasting(persist_ms=100).reading()
    talk.pulled(q(0), found(0))
    talk.handled((talk.deliveries()[0], HandlerOutcome.LATER))
    assert talk.of(rq.SendBack) == []
    assert talk.at(100) == [fx.StoreOffsets(((q(0), 1),))]


def test_an_offset_that_the_broker_has_no_more_is_corrected_in_the_store():
    """The queue is read from the corrected offset."""
    talk = Broadcasting().reading(offset=5)
    talk.pulled(q(0), nothing(10, 21))
    assert talk.of(fx.StoreOffsets) == [fx.StoreOffsets(((q(0), 10),))]
    assert [effect.queue for effect in talk.of(fx.ReadOffset)] == [q(0)]
    assert talk.of(fx.Assigned) == []


def test_new_queues_are_taken():
    """They are found by the next refresh of the routes; others are not disturbed."""
    talk = Broadcasting().reading(1)
    before = talk.owned(q(0))
    talk.routes(T=route(2))
    assert talk.of(fx.Assigned) == [fx.Assigned((q(1),))]
    assert talk.owned(q(0)) is before


def test_leaving_writes_offsets_and_unregisters():
    """Leaving waits for nothing, since the offset file is the member's own."""
    talk = Broadcasting().reading()
    talk.pulled(q(0), found(0))
    talk.handled((talk.deliveries()[0], HandlerOutcome.SUCCESS))
    talk.stop()
    assert talk.effects == [
        fx.StoreOffsets(((q(0), 1),)), fx.Revoked((q(0),)), rq.Unregister("a:1"),
    ]  # fmt: skip
    assert talk.core._phase is Phase.LEAVING
