"""Charge each order once, although one is sent twice and another's handler fails and runs again.

    libra up                    # in another terminal
    python examples/idempotent_handler.py

It prints:

    ['order-1', 'order-2', 'order-3']
"""

import tempfile
import threading
from pathlib import Path

from libramq import Message, Retry
from libramq.client.idempotence import SqliteStore, idempotent
from libramq.sync import Producer, PushConsumer

charges: list[str] = []
is_complete = threading.Event()
failed: list[str] = []


def charge(messages):
    (message,) = messages
    if message.keys == ("order-2",) and not failed:
        failed.append("order-2")
        return Retry(after=1)  # The bank did not answer: the key is not marked as done.
    charges.append(message.keys[0])
    if len(charges) == 3:
        is_complete.set()
    return None


with Producer() as producer:
    for key in ("order-1", "order-2", "order-1", "order-3"):  # The till sent order-1 twice.
        producer.send(Message("CardCharges", b"10 euros", keys=key))

with tempfile.TemporaryDirectory() as directory:
    store = SqliteStore(Path(directory) / "handled.db")  # Use RedisStore if members run on several machines.
    consumer = PushConsumer(group="bank", consume_from="earliest")
    consumer.subscribe("CardCharges", "*", idempotent(charge, store=store, key="key"))
    with consumer:
        is_complete.wait(timeout=60)
    store.close()

print(sorted(charges))
