"""Receive and acknowledge jobs one by one; one fails, is returned, and succeeds on its second attempt.

    libra up                    # in another terminal
    python examples/simple_consumer.py

It prints:

    resize cat.png: done
    resize dog.png: failed, returned
    resize dog.png: done
"""

from libramq import Message
from libramq.sync import Producer, SimpleConsumer


def resize(message):
    """Fail on the first attempt at the dog."""
    if message.body == b"resize dog.png" and not message.reconsume_times:
        raise OSError("the disk is full")


with Producer(group="website") as producer, SimpleConsumer(group="workers") as consumer:
    consumer.subscribe("Images")
    left = 0
    for name in ("cat", "dog"):
        producer.send(Message("Images", f"resize {name}.png".encode()))
        while True:
            for message in consumer.receive(1, invisible_ms=60_000):
                try:
                    resize(message)
                except OSError:
                    print(f"{message.body.decode()}: failed, returned")
                    consumer.nack(message)
                else:
                    consumer.ack(message)
                    print(f"{message.body.decode()}: done")
                    left += 1
            if left == ("cat", "dog").index(name) + 1:
                break
