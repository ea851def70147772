"""Send a message and insert a database row: both or neither, whatever fails in between.

    libra up                    # in another terminal
    python examples/transaction.py

It prints:

    order 1: inserted and announced
    order 2: out of stock, not announced
    announced: order 1
"""

import sqlite3
import threading

from libramq import Message
from libramq.client import TransactionState
from libramq.sync import Producer, PushConsumer

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE orders (number TEXT PRIMARY KEY)")


def check(message):
    """Tell the broker how a transaction ended if it never learned, for example after a restart."""
    (number,) = message.keys
    row = database.execute("SELECT 1 FROM orders WHERE number = ?", (number,)).fetchone()
    return TransactionState.COMMIT if row else TransactionState.ROLLBACK


announced = threading.Event()


def handle(messages):
    for message in messages:
        print("announced: order", *message.keys)
        announced.set()


with Producer(group="shop", check_transaction=check) as producer:
    for number, in_stock in (("1", True), ("2", False)):
        try:
            with producer.transaction(Message("Announced", b"placed", keys=number)), database:
                if not in_stock:
                    raise LookupError("out of stock")
                database.execute("INSERT INTO orders VALUES (?)", (number,))
            print(f"order {number}: inserted and announced")
        except LookupError as error:
            print(f"order {number}: {error}, not announced")

consumer = PushConsumer(group="announcer", consume_from="earliest")
consumer.subscribe("Announced", "*", handle)
with consumer:
    announced.wait(timeout=60)
