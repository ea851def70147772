"""Test your own program against a private broker; `libra up` is not needed.

pytest examples/test_with_a_broker.py
"""

import threading

import pytest

from libramq import Message
from libramq.sync import Producer, PushConsumer
from libramq.testing import Broker


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:  # Uses free ports and a temporary directory.
        yield broker


def test_an_order_is_handled(broker):
    bodies = []
    is_handled = threading.Event()

    def handle(messages):
        bodies.extend(message.body for message in messages)
        is_handled.set()

    consumer = PushConsumer(group="shop", namesrv=broker.namesrv, consume_from="earliest")
    consumer.subscribe("Orders", "*", handle)
    with consumer, Producer(namesrv=broker.namesrv) as producer:
        producer.send(Message("Orders", b"a tea"))
        assert is_handled.wait(timeout=60)
    assert bodies == [b"a tea"]
