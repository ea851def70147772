"""A push consumer's core; the test plays its brokers."""

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.push_consumer_core import PushConsumerCore
from libramq.clock import Now
from libramq.codes import ResponseCode
from libramq.errors import RequestTimeout
from libramq.filter.tag import parse_tag_filter
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import HeartbeatReply, PullReply
from tests.client.consuming import requests as rq
from tests.client.consuming.examples import message, route

WALL_MS = 1_000_000
RETRY = "%RETRY%g"
SILENT = RequestTimeout("the test does not answer")


def q(number, *, topic="T", broker="a"):
    return MessageQueue(topic, broker, number)


def found(*offsets, next_offset=None, tag=None, topic="T", body=b"x"):
    """Return a pull reply with messages, in the form that `pulled` takes."""
    reply = PullReply(0, next_offset if next_offset is not None else offsets[-1] + 1, 0, 100, 0, b"")
    return reply, [message(offset, tag=tag, topic=topic, body=body) for offset in offsets]


def nothing(next_offset, code=ResponseCode.PULL_NOT_FOUND, broker_id=0):
    return PullReply(code, next_offset, 0, 100, broker_id, b""), []


def _raise(_, error):
    raise error


class Conversation:
    """A conversation with the core: it feeds events, keeps the time, and collects each event's effects."""

    def __init__(self, *, expression="*", topics=("T",), **settings):
        settings = {"takeover_delay_ms": 100, "revoke_drain_ms": 75, "persist_ms": 1_000} | settings
        self.settings = ConsumerSettings(group="g", client_id="me", **settings)
        filters = {topic: parse_tag_filter(expression) for topic in topics}
        self.core = PushConsumerCore(self.settings, filters, self, _raise)
        self.now_ms = 0
        self.effects = []

    def monotonic_ms(self):
        return self.now_ms

    def wall_ms(self):
        return WALL_MS + self.now_ms

    def of(self, kind):
        """Return the last event's effects of one kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def deliveries(self):
        """Return the last event's deliveries to handlers."""
        return [each for effect in self.of(fx.Deliver) for each in effect.deliveries]

    def _(self, _=None):
        """Settle an event, as the network does after each, and record its effects."""
        self.core.settle()
        return self.note(self.decided())

    def decided(self):
        """Take the effects that the core decided since the last call."""
        pending = self.core.kernel.effects.pending
        effects = pending.copy()
        pending.clear()
        return effects

    def note(self, effects):
        self.effects = rq.received(effects)
        for beat in self.of(rq.SendHeartbeat):  # An answer without news.
            if beat.address in self.core.known_brokers.alive:
                beat.ask.done(HeartbeatReply(0, coordinates=True), self.now_ms)
                assert self.decided() == []
        return self.effects

    @property
    def next_due_ms(self):
        return self.core.kernel.deadlines.next_due_ms

    def start(self):
        return self._(self.core.start(Now(wall_ms=WALL_MS, monotonic_ms=self.now_ms)))

    def routes(self, found=None, **topics):
        return self._(self.core.known_brokers.routes_fetched(found or topics, self.now_ms))

    def heartbeat(self, address="a:1", *, ok=True, offers=False):
        outcome = HeartbeatReply(0, coordinates=offers) if ok else SILENT
        return self._(self.core.known_brokers.heartbeat_answered(address, outcome, self.now_ms))

    def members(self, *ids, address="a:1", topics=("T",)):
        return self._(self.core.rebalancing.list_fetched(address, topics, ids or SILENT, self.now_ms))

    def committed(self, queue, outcome):
        return self._(self.core.own.answered(self.owned(queue), ev.OffsetAnswered, outcome, self.now_ms))

    def start_at(self, queue, outcome):
        return self._(self.core.own.answered(self.owned(queue), ev.StartAnswered, outcome, self.now_ms))

    def pulled(self, queue, reply, claim=None):
        outcome, messages = reply if isinstance(reply, tuple) and not hasattr(reply, "code") else (reply, [])
        return self._(self.core.own.pulled(self.owned(queue), claim, outcome, messages, self.now_ms))

    def handled(self, *results):
        return self._(self.core.handled(results, self.now_ms))

    def commit_answered(self, commit, *, ok=True):
        outcome = None if ok else SILENT
        return self._(commit.ask.done(outcome, self.now_ms))

    def notified(self):
        return self._(self.core.members_changed(self.now_ms))

    def lost(self, address="a:1"):
        return self._(self.core.connection_lost(address, self.now_ms))

    def stop(self, timeout_ms=1000):
        return self._(self.core.stop(self.now_ms, timeout_ms=timeout_ms))

    def at(self, now_ms, *, with_routes=False):
        """Let time pass up to a moment; skip route refreshes unless the test wants them."""
        assert now_ms >= self.now_ms
        effects = []
        while (due_ms := self.next_due_ms) is not None and due_ms <= now_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.core.kernel.deadlines.run(self.now_ms)
            self.core.settle()
            effects += self.decided()
        self.now_ms = now_ms
        return self.note(e for e in effects if with_routes or not isinstance(e, fx.FetchRoutes))

    def offset(self, queue):
        """Return the queue's position for the next commit; None if it is not known yet."""
        return self.core.offsets.read(queue)

    def owned(self, queue):
        owned = self.core.table.get(queue)
        assert owned is not None, f"{queue} is not ours"
        return owned

    def joined(self, queues=2, *members, route_=None):
        """Return a member that has its queues and waits for their committed offsets."""
        self.start()
        self.routes(T=route_ or route(queues))
        self.heartbeat()
        self.members(*(members or ("me",)))
        return self

    def pulling(self, queues=1, offset=0):
        """Return a member that is alone and pulls all queues from an offset."""
        self.joined(queues)
        for effect in self.of(rq.QueryOffset):
            self.committed(effect.queue, offset)
        return self
