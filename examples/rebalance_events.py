"""Prints the rebalances of a group while members come and go.

    libra up                    # in another terminal
    python examples/rebalance_events.py

It prints:

    Ann comes: 12 of 12 queues moved, 12 had to; queues of each: [12]
    Ben comes: 6 of 12 queues moved, 6 had to; queues of each: [6, 6]
    Eve comes: 4 of 12 queues moved, 4 had to; queues of each: [4, 4, 4]
    Ben goes: 4 of 12 queues moved, 4 had to; queues of each: [6, 6]
"""

import json
import queue

from libramq.sync import Admin, PushConsumer

events = queue.Queue()


def listen(messages):
    for message in messages:
        event = json.loads(message.body)
        if event["group"] == "crew":
            events.put(event)


watcher = PushConsumer(group="crew-watchers", consume_from="earliest")
watcher.subscribe("LIBRA_REBALANCE_EVENTS", "settled", listen)


def member():
    consumer = PushConsumer(group="crew")
    consumer.subscribe("Tasks", "*", lambda messages: None)
    consumer.start()
    return consumer


def report(what):
    event = events.get(timeout=60)
    loads = sorted(event["loads"].values(), reverse=True)
    print(f"{what}: {event['moved']} of 12 queues moved, {event['minimum']} had to; queues of each: {loads}")


with Admin() as admin:
    admin.create_topic("Tasks", queues=12)

with watcher:
    ann = member()
    report("Ann comes")
    ben = member()
    report("Ben comes")
    eve = member()
    report("Eve comes")
    ben.stop()
    report("Ben goes")
    ann.stop()
    eve.stop()
