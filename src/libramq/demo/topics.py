"""The topics of the demonstration, created at the broker in advance."""

from typing import Final

from libramq.clock import SystemClock
from libramq.formats.tables import TopicConfig
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.rpc.admin_calls import create_topic
from libramq.transport.blocking import BlockingRemote

FLIGHTS: Final = "Flights"
CLOCK: Final = "FlightsClock"
EVENTS: Final = REBALANCE_EVENTS_TOPIC
FLIGHTS_QUEUES: Final = 16
GROUP: Final = "flight-delays"


def create(broker_address: str, topic: str, queue_count: int) -> None:
    """Create a topic, or set its queues."""
    config = TopicConfig(topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count)
    call = create_topic(config)
    remote = BlockingRemote(broker_address, SystemClock().monotonic_ms)
    try:
        call.result(remote.call(call.command()), where=f"broker {broker_address}")
    finally:
        remote.close()
