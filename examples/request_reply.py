"""Request and reply over messages: a customer asks for prices, and a consumer replies.

    libra up                    # in another terminal
    python examples/request_reply.py

It prints:

    beans cost 4 euros
    nobody sells gold
"""

from libramq import Message
from libramq.sync import Producer, PushConsumer

PRICES = {b"beans": b"4 euros"}

with Producer(group="shop") as shop:

    def handle(messages):
        """Reply to each request; the customer is waiting."""
        for message in messages:
            shop.reply(message, PRICES.get(message.body, b"?"))

    consumer = PushConsumer(group="prices", consume_from="earliest")
    consumer.subscribe("Prices", "*", handle)
    with consumer, Producer(group="customers") as customer:
        for what in ("beans", "gold"):
            reply = customer.request(Message("Prices", what.encode()), timeout_ms=60_000)
            print(f"{what} cost {reply.body.decode()}" if reply.body != b"?" else f"nobody sells {what}")
