"""A consumer of a topic that does not exist: it reports that, and operators see its group."""

import logging
import random

import pytest

from libramq import Consumer, Message, Producer, PushConsumer
from libramq.admin.groups import GroupWatch
from libramq.client import Admin
from libramq.client.consuming import effects as fx
from libramq.client.consuming.known_brokers import MISSING_AGAIN_MS, WITHOUT_TOPIC_MAX
from libramq.client.routing.name_servers import HINT_MS, NameServers
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import NAMES_COMPARED_MAX, RouteNotFound
from libramq.formats.document import encode_body
from libramq.remoting.body.cluster import TopicList
from libramq.remoting.command import reply_to
from libramq.testing import Broker
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation
from tests.client.consuming.examples import route
from tests.fakes import ManualClock
from tests.transport.loops import until


@pytest.mark.parametrize("pop", [False, True], ids=["queues", "pop"])
async def test_a_push_consumer_reports_the_missing_topic_and_is_listed_with_it(pop, caplog):
    """Then the topic is created, and the consumer reads it."""
    errors, got = [], []
    async with Broker() as broker, Admin(namesrv=broker.namesrv) as admin:
        await admin.create_topic("orders", queues=1)
        consumer = PushConsumer(
            group="billing",
            namesrv=broker.namesrv,
            consume_from="earliest",
            pop=pop,
            on_error=errors.append,
        )
        consumer.subscribe("ordres", "*", got.extend)
        async with consumer, GroupWatch(broker.namesrv) as watch:
            await until(lambda: errors)
            (error,) = errors
            assert isinstance(error, RouteNotFound)
            assert "no broker has the topic ordres (did you mean orders?), and group billing" in str(error)

            async def listed():
                return [state for state in await watch.look() if state.group == "billing" and state.members]

            while not await listed():
                pass
            connection = await admin.consumer_connection("billing")
            assert "ordres" in connection.subscription_table
            await admin.create_topic("ordres", queues=1)
            async with Producer(group="p", namesrv=broker.namesrv) as producer:
                await producer.send(Message("ordres", b"1"))
            await until(lambda: got)
        assert len(errors) == 1
    assert "the consumer waits for a topic group=billing" in caplog.text
    assert "problem" not in caplog.text  # The first message may create it.


async def test_a_fetching_consumer_reports_it_too():
    errors = []
    async with Broker() as broker:
        consumer = Consumer(group="billing", namesrv=broker.namesrv, on_error=errors.append)
        consumer.subscribe("ordres")
        async with consumer:
            await until(lambda: errors)
    assert isinstance(errors[0], RouteNotFound)


def test_the_log_repeats_it_seldom(caplog):
    """The topics are looked up more often than listed. The group is shown to few brokers."""
    caplog.set_level(logging.WARNING)
    talk = Conversation()
    talk.start()
    masters = [f"{number}:1" for number in range(9)]
    listed = 0
    while talk.now_ms < 2 * MISSING_AGAIN_MS + 60_000:
        talk.routes(T=None)
        talk.at(talk.now_ms + 1, with_routes=True)
        if talk.of(rq.ListTopics):
            listed += 1
            talk._(talk.core.known_brokers.topics_listed(["t", "U"], masters, talk.now_ms))
            if listed == 1:
                assert len(talk.of(rq.SendHeartbeat)) == WITHOUT_TOPIC_MAX
                (trouble,) = talk.of(fx.Trouble)
                assert "(did you mean t?)" in str(trouble.error)
            else:
                assert not talk.of(fx.Trouble)
        talk.at(talk.now_ms + 5_000, with_routes=True)
    assert listed == 3
    assert caplog.text.count("a topic is still missing") == 2
    talk.routes(T=route(4))
    assert caplog.text.count("the missing topic exists now") == 1


def test_few_missing_topics_are_compared_with_many_names():
    """Each takes a good half second, while the consumer sends no heartbeat and renews no lease."""
    missing = [f"orders-{number}" for number in range(50)]
    talk = Conversation(topics=missing)
    talk.start()
    talk.routes(**dict.fromkeys(missing))
    names = [f"Orders-{number}" for number in range(NAMES_COMPARED_MAX // 2)]
    talk._(talk.core.known_brokers.topics_listed(names, [], talk.now_ms))
    troubles = [str(each.error) for each in talk.of(fx.Trouble)]
    assert len(troubles) == len(missing)
    assert sum("did you mean" in each for each in troubles) == 2


def test_nobody_is_told_that_a_retry_topic_is_missing():
    talk = Conversation()
    talk.start()
    talk.routes(**{"T": route(4), "%RETRY%g": None})
    talk.at(1, with_routes=True)
    assert not talk.of(rq.ListTopics)


class NameServer:
    """Connections to a name server that has one topic. lists: how often all were listed."""

    def __init__(self):
        self.lists = 0
        self.topics = ["orders"]

    def send(self, address, command, done, *, timeout_ms):
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            done(reply_to(command, ResponseCode.TOPIC_NOT_EXIST))
            return
        self.lists += 1
        done(reply_to(command, ResponseCode.SUCCESS, body=encode_body(TopicList(topic_list=self.topics))))


def test_all_topics_are_compared_once_and_not_with_each_send():
    """Among 10,000 of them that would stop the program's loop for a second."""
    name_server, outcomes = NameServer(), []
    clock = ManualClock()
    servers = NameServers(name_server, ["n:1"], random.Random(1), clock.monotonic_ms)
    for _ in range(3):
        servers.route_to_send("ordres", outcomes.append, queue_count=4)
        servers.route("ordres", outcomes.append)
    assert ["(did you mean orders?)" in str(each) for each in outcomes] == [True] * 6
    assert name_server.lists == 1
    name_server.topics = ["ordres-2"]  # The hint used to stay for the client's life.
    clock.advance(HINT_MS)
    servers.route("ordres", outcomes.append)
    assert "(did you mean ordres-2?)" in str(outcomes[-1])
