"""Print the rebalances of a group while members join and leave.

    libra up                    # in another terminal
    python examples/rebalance_events.py

It prints:

    Ann joins: 12 of 12 queues moved (minimum 12); per member: [12]
    Ben joins: 6 of 12 queues moved (minimum 6); per member: [6, 6]
    Eve joins: 4 of 12 queues moved (minimum 4); per member: [4, 4, 4]
    Ben leaves: 4 of 12 queues moved (minimum 4); per member: [6, 6]
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
    print(f"{what}: {event['moved']} of 12 queues moved (minimum {event['minimum']}); per member: {loads}")


with Admin() as admin:
    admin.create_topic("Tasks", queues=12)

with watcher:
    ann = member()
    report("Ann joins")
    ben = member()
    report("Ben joins")
    eve = member()
    report("Eve joins")
    ben.stop()
    report("Ben leaves")
    ann.stop()
    eve.stop()
