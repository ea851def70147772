"""Consume in order: the steps of each parcel in sequence, different parcels in parallel.

    libra up                    # in another terminal
    python examples/ordered.py

It prints:

    A packed shipped delivered
    B packed shipped delivered
    C packed shipped delivered
    D packed shipped delivered
"""

import threading

from libramq import Message
from libramq.client import by_hash
from libramq.sync import Admin, Producer, PushConsumer

STEPS = ("packed", "shipped", "delivered")
PARCELS = ("A", "B", "C", "D")

with Admin() as admin:
    admin.create_topic("ParcelSteps", queues=4)

with Producer() as producer:
    for step in STEPS:
        for parcel in PARCELS:
            # All steps of a parcel go to the same queue, which keeps their order.
            producer.send(Message("ParcelSteps", step.encode(), keys=parcel), selector=by_hash(parcel))

seen: dict[str, list[str]] = {parcel: [] for parcel in PARCELS}
is_complete = threading.Event()


def handle(messages):
    # If this raised, the message would be retried after a second, and the queue's later messages would wait.
    for message in messages:
        seen[message.keys[0]].append(message.body.decode())
    if all(len(steps) == len(STEPS) for steps in seen.values()):
        is_complete.set()


consumer = PushConsumer(group="tracker", orderly=True, consume_from="earliest")
consumer.subscribe("ParcelSteps", "*", handle)
with consumer:
    is_complete.wait(timeout=60)

for parcel, steps in seen.items():
    print(parcel, *steps)
