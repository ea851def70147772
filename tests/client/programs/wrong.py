"""Programs that are wrong: the type checker must refuse each line with `# wrong`, and no other."""

import libramq
import libramq.client
from libramq import Message, MessageExt, Producer, PushConsumer, Reject, Retry, sync
from libramq.client import Handler


def count(messages: list[MessageExt]) -> int:
    return len(messages)


def text(messages: list[MessageExt]) -> str:
    return "done"


def one(message: MessageExt) -> None:
    print(message.body)


async def number(messages: list[MessageExt]) -> int:
    return len(messages)


handler: Handler = count  # wrong
libramq.Prodcuer(group="g")  # wrong
libramq.client.PushConsummer(group="g")  # wrong
consumer = PushConsumer(group="g")
consumer.subscribe("T", "*", count)  # wrong
consumer.subscribe("T", "*", text)  # wrong
consumer.subscribe("T", "*", one)  # wrong
consumer.subscribe("T", "*", number)  # wrong
consumer.subscribe("T", "*", lambda messages: messages)  # wrong
consumer.subscribe("T", "*", None)  # wrong
consumer.subscribe("T", nothing := count)  # wrong
PushConsumer()  # wrong
PushConsumer(group=5)  # wrong
PushConsumer(group="g", session_ms="abc")  # wrong
PushConsumer(group="g", consume_from="oldest")  # wrong
PushConsumer(group="g", nonsense=1)  # wrong
PushConsumer(group="g", on_error=lambda: None)  # wrong
sync.PushConsumer()  # wrong
sync.PushConsumer(group="g", threads="4")  # wrong
sync.PushConsumer(group="g", nonsense=1)  # wrong
sync.PushConsumer(group="g").stop(timeout=5)  # wrong
Producer(linger_ms="1")  # wrong
sync.Producer(retries="2")  # wrong
sync.Producer(nonsense=1)  # wrong
sync.Producer().send(b"text")  # wrong
sync.Producer().send(Message("T", "text"))  # wrong
sync.Producer().send_nowait_unbounded(Message("T", b"x"))  # wrong
sync.Consumer(group="g").decoded("json")  # wrong
libramq.Consumer(group="g").decoded(str.upper)  # wrong
next(sync.Consumer(group="g").decoded(int))[1].upper()  # wrong
sync.Admin(nonsense=1)  # wrong
sync.Admin().create_topic("T", queue=1)  # wrong
Retry(after="soon")  # wrong
Retry(60)  # wrong
Retry(messages=[b"x"])  # wrong
Reject(after=5)  # wrong
