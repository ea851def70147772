"""A broker whose machine loses power: offsets do not lead what is left."""

import random

import pytest

from libramq.broker.broker import Broker
from libramq.broker.config import BrokerConfig
from libramq.store.append import StoreMessage
from libramq.testing.disk import MemoryDisk
from libramq.testing.virtual_time import VirtualTime


def open_on(disk: MemoryDisk) -> Broker:
    config = BrokerConfig(store_path="/broker", commit_log_file_bytes=1 << 16, consume_queue_file_bytes=2_000)
    return Broker(config, clock=VirtualTime(), filesystem=disk, randomness=random.Random(1))


@pytest.mark.parametrize("power", ["fails", "stays"])
def test_the_offset_of_a_queue_that_was_lost_comes_back_to_its_beginning(power: str):
    """Otherwise the group would skip the messages that get the lost ones' numbers."""
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    broker = open_on(disk)
    for _ in range(3):
        broker.store.append_batch([StoreMessage("T", 0, b"lost", b"", 0)])
    broker.offsets.commit("G", "T", 0, 3)
    broker.offsets.write()
    broker.ledger.persist(0)
    if power == "fails":
        disk.power_cut()
    else:
        disk.process_died()
    broker = open_on(disk)
    assert broker.store.max_offset("T", 0) == (0 if power == "fails" else 3)
    assert broker.offsets.query("G", "T", 0) == (0 if power == "fails" else 3)
