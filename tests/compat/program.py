"""A member or producer in its own process, run by either version; it prints JSON lines until "stop".

    python -m tests.compat.program member '{"namesrv": …, "group": …, "topic": …}'
    python -m tests.compat.program popper '{"namesrv": …, "group": …, "topic": …}'
    python -m tests.compat.program producer '{"namesrv": …, "topic": …}'

It uses only names that the earlier LibraMQ has, too.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import libramq
from libramq.client import Admin, ConsumeFrom, Producer, PushConsumer, SimpleConsumer
from libramq.errors import LibraError
from libramq.message import Message, MessageExt, MessageQueue

#: The directory that libramq is imported from: which version this process runs.
SITE = str(Path(libramq.__file__).parent.parent)
#: The pause between two messages of a producer: enough to have some in every queue at every moment of a test.
PAUSE_S = 0.02
READY_S = 30.0
#: One message in so many is a timer message, and comes after so long.
TIMERS, DELAY_MS = 10, 2_000
#: Short, so that what a broker's end left unacknowledged comes again soon.
INVISIBLE_MS = 10_000


def output(event: str, **fields: Any) -> None:
    """Print an event as a line of JSON."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def place(queue: MessageQueue | MessageExt) -> str:
    """Return a queue's name in the output."""
    return f"{queue.broker_name}/{queue.queue_id}"


async def member(options: dict[str, Any], stopped: asyncio.Event) -> None:
    """Consume; print the handled messages and every change of the member's queues."""
    topic = options.pop("topic")

    async def handle(messages: list[MessageExt]) -> None:
        for message in messages:
            output("message", queue=place(message), offset=message.queue_offset, number=int(message.body))

    def tell(event: str) -> Any:
        def hook(queues: tuple[MessageQueue, ...]) -> None:
            output(event, queues=[place(queue) for queue in queues if queue.topic == topic])

        return hook

    consumer = PushConsumer(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        on_assigned=tell("assigned"),
        on_revoked=tell("revoked"),
        on_lost=tell("lost"),
        **options,
    )
    consumer.subscribe(topic, "*", handle)
    async with consumer:
        output("started", site=SITE, clientId=consumer.client_id)
        await stopped.wait()


async def popper(options: dict[str, Any], stopped: asyncio.Event) -> None:
    """Pop, print and acknowledge; what could not be acknowledged comes again."""
    async with SimpleConsumer(group=options["group"], namesrv=options["namesrv"]) as consumer:
        consumer.subscribe(options["topic"])
        output("started", site=SITE)
        while not stopped.is_set():
            try:
                for message in await consumer.receive(32, invisible_ms=INVISIBLE_MS, await_ms=1_000):
                    output("message", queue=place(message), number=int(message.body))
                    await consumer.ack(message)
            except LibraError as error:
                output("failed", reason=str(error))
                await asyncio.sleep(PAUSE_S)


async def producer(options: dict[str, Any], stopped: asyncio.Event) -> None:
    """Send numbers to every queue in turn, some as timer messages; print which were acknowledged."""
    topic, number = options["topic"], options.get("first", 0)
    async with Producer(group="compat_producers", namesrv=options["namesrv"]) as sender:
        queues = await sender.publish_queues(topic)
        output("started", site=SITE)
        while not stopped.is_set():
            try:
                delay_ms = DELAY_MS if number % TIMERS == TIMERS - 1 else 0
                message = Message(topic, b"%d" % number, delay_ms=delay_ms)
                result = await sender.send(message, queue=queues[number % len(queues)])
                output("acknowledged", number=number, queue=place(result.queue))
            except LibraError as error:  # The broker restarts; the message may still have been stored.
                output("failed", number=number, reason=str(error))
            number += 1
            await asyncio.sleep(PAUSE_S)


async def create(options: dict[str, Any], stopped: asyncio.Event) -> None:
    """Create a topic at every broker of the cluster, then wait: a program may end only after "stop"."""
    async with Admin(namesrv=options["namesrv"]) as admin:
        output("started", site=SITE)
        await admin.create_topic(options["topic"], queues=options["queues"])
        await stopped.wait()


ROLES = {"member": member, "popper": popper, "producer": producer, "create": create}


async def run(role: str, options: dict[str, Any]) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def heard() -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data or b"stop" in data:
            loop.remove_reader(sys.stdin)
            stopped.set()

    loop.add_reader(sys.stdin, heard)
    await ROLES[role](options, stopped)
    output("stopped")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], json.loads(sys.argv[2])))
