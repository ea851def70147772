"""A producer, a member or a Spark stream in its own process; prints JSON lines until it reads "stop".

python -m bench.soaking.program member '{"namesrv": …}'
"""

import asyncio
import json
import os
import random
import select
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

PLAIN: Final = "SoakPlain"
TIMERS: Final = "SoakTimers"
POPPED: Final = "SoakPopped"
KAFKA: Final = "SoakKafka"
SPARK: Final = "spark"
#: Ours: one in this many plain messages is handled at its second delivery.
RETRIED: Final = 500
RETRY_AFTER_S: Final = 5
TICK_S: Final = 0.05
#: The rate of each stream as a share of the plain messages' rate.
SHARES: Final = {PLAIN: 1.0, TIMERS: 0.1, POPPED: 0.2, KAFKA: 0.1}
BODY_BYTES: Final = 200
KAFKA_TIMEOUT_MS: Final = 300_000
SPARK_TRIGGER: Final = "10 seconds"

Options = dict[str, Any]


def output(event: str, **fields: object) -> None:
    """Print an event as a line of JSON in one write, because the process may be killed."""
    os.write(sys.stdout.fileno(), (json.dumps({"event": event, **fields}) + "\n").encode())


def body(number: int, due_ms: int = 0) -> bytes:
    """Return a message's body: its number, its due time, and filler."""
    return b"%d %d " % (number, due_ms) + b"x" * BODY_BYTES


def number_of(body: bytes) -> int:
    """Return the number in a body."""
    return int(body.split(b" ", 1)[0])


class Pace:
    """Computes the number of messages of each stream that are due by now."""

    def __init__(self, rate: float, streams: Iterable[str]) -> None:
        self._began = time.monotonic()
        self._rates = {stream: rate * SHARES[stream] for stream in streams}
        self._next = dict.fromkeys(self._rates, 0)

    def due(self) -> list[tuple[str, int]]:
        """Return the numbers of the messages to send now, at most one second's worth of each stream."""
        passed = time.monotonic() - self._began
        found = []
        for stream, rate in self._rates.items():
            first = self._next[stream]
            count = min(int(passed * rate) - first, int(rate) + 1)
            found += [(stream, number) for number in range(first, first + count)]
            self._next[stream] += count
        return found


async def sender(options: Options, stopped: asyncio.Event) -> None:
    """Send plain messages, timer messages and messages to pop; print each acknowledgement."""
    from libramq import Message, Producer
    from libramq.errors import LibraError

    chance = random.Random(1)
    pace = Pace(options["rate"], (PLAIN, TIMERS, POPPED))

    async def send(producer: Producer, stream: str, number: int) -> None:
        delay_ms = chance.randrange(1_000, options["delay_ms_max"]) if stream == TIMERS else 0
        message = Message(
            stream, body(number, int(time.time() * 1000) + delay_ms), keys=str(number), delay_ms=delay_ms
        )
        try:
            await producer.send(message)
        except LibraError as error:  # It may have been stored; the tally ignores it.
            output("failed", stream=stream, number=number, reason=str(error))
        else:
            output("acknowledged", stream=stream, numbers=[number])

    async with Producer(group="soak_producers", namesrv=options["namesrv"]) as producer:
        output("started")
        under_way: set[asyncio.Task[None]] = set()
        while not stopped.is_set():
            for stream, number in pace.due():
                task = asyncio.create_task(send(producer, stream, number))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*under_way)


async def member(options: Options, stopped: asyncio.Event) -> None:
    """Consume plain messages and timer messages as a member of a push group."""
    from libramq import MessageExt, PushConsumer, Retry

    async def handle(messages: list[MessageExt]) -> object:
        again = [
            message
            for message in messages
            if message.topic == PLAIN
            and not message.reconsume_times
            and not number_of(message.body) % RETRIED
        ]
        done = [message for message in messages if message not in again]
        if done:
            output("handled", stream=done[0].topic, numbers=[number_of(message.body) for message in done])
            now_ms = time.time() * 1000
            for message in done:
                if message.topic == TIMERS and now_ms < int(message.body.split(b" ", 2)[1]):
                    output("early", number=number_of(message.body))
        return Retry(messages=again, after=RETRY_AFTER_S) if again else None

    consumer = PushConsumer(
        group="soak", namesrv=options["namesrv"], consume_from="earliest", batch_size=32, threads=4
    )
    consumer.subscribe(PLAIN, "*", handle)
    consumer.subscribe(TIMERS, "*", handle)
    async with consumer:
        output("started")
        await stopped.wait()


async def popper(options: Options, stopped: asyncio.Event) -> None:
    """Consume as a member of a group that pops."""
    from libramq import MessageExt, PushConsumer

    async def handle(messages: list[MessageExt]) -> None:
        output("handled", stream=POPPED, numbers=[number_of(message.body) for message in messages])

    consumer = PushConsumer(
        group="soak_popping",
        namesrv=options["namesrv"],
        pop=True,
        consume_from="earliest",
        batch_size=32,
        threads=4,
    )
    consumer.subscribe(POPPED, "*", handle)
    async with consumer:
        output("started")
        await stopped.wait()


def is_stopped(pause_s: float = 0) -> bool:
    """Pause for input; return whether it says "stop" or has ended."""
    readable, _, _ = select.select([sys.stdin], [], [], pause_s)
    return bool(readable)


def kafka_sender(options: Options) -> None:
    """Send with Kafka's C client; print the acknowledged records."""
    from confluent_kafka import Producer

    pace = Pace(options["rate"], (KAFKA,))
    producer = Producer(
        {
            "bootstrap.servers": options["kafka"],
            "log_level": 0,
            "acks": "all",
            "message.timeout.ms": KAFKA_TIMEOUT_MS,
        }
    )

    def report(number: int) -> Callable[..., None]:
        def delivered(error: object, _: object) -> None:
            if error is None:
                output("acknowledged", stream=KAFKA, numbers=[number])
            else:
                output("failed", stream=KAFKA, number=number, reason=str(error))

        return delivered

    output("started")
    while not is_stopped(TICK_S):
        for _, number in pace.due():
            producer.produce(KAFKA, body(number), on_delivery=report(number))
        producer.poll(0)
    producer.flush(KAFKA_TIMEOUT_MS / 1000)


def kafka_member(options: Options) -> None:
    """Consume as a member of a Kafka group; commit the printed messages."""
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": options["kafka"],
            "group.id": "soak-kafka",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([KAFKA])
    output("started")
    while not is_stopped():
        records = consumer.consume(num_messages=100, timeout=0.5)
        numbers = [number_of(record.value()) for record in records if record.error() is None]
        if not numbers:
            continue
        output("handled", stream=KAFKA, numbers=numbers)
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:  # A rebalance, or a lost coordinator: redelivered.
            output("uncommitted", reason=str(error))
    consumer.close()


def spark_stream(options: Options) -> None:
    """Read the plain messages as a stream; restart a failed query from its checkpoint."""
    from pyspark.errors import PySparkException

    from libramq.spark import session

    spark = session(
        master="local[1]",
        settings={"spark.driver.memory": "512m", "spark.sql.streaming.minBatchesToRetain": "10"},
    )

    def handle(frame: Any, _: int) -> None:
        numbers = [number_of(bytes(row.body)) for row in frame.collect()]
        for first in range(0, len(numbers), 1_000):
            output("handled", stream=SPARK, numbers=numbers[first : first + 1_000])

    def start() -> Any:
        stream = (
            spark.readStream.format("rocketmq")
            .option("namesrv", options["namesrv"])
            .option("subscribe", PLAIN)
            .option("columns", "body")
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = stream.writeStream.foreachBatch(handle).trigger(processingTime=SPARK_TRIGGER)
        return writer.option("checkpointLocation", options["checkpoint"]).start()

    query = start()
    output("started")
    while not is_stopped(1):
        if not query.isActive:
            try:
                query.awaitTermination()
            except PySparkException as error:
                output("restarted", reason=str(error)[:300])
            query = start()
    query.stop()
    spark.stop()


async def _run(role: Callable[[Options, asyncio.Event], Awaitable[None]], options: Options) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def ended() -> None:
        loop.remove_reader(sys.stdin)
        stopped.set()

    loop.add_reader(sys.stdin, ended)
    await role(options, stopped)


ASYNC_ROLES: Final = {"sender": sender, "member": member, "popper": popper}
ROLES: Final = {"kafka_sender": kafka_sender, "kafka_member": kafka_member, "spark": spark_stream}


def main() -> None:
    """Run the role named by the arguments."""
    role, options = sys.argv[1], json.loads(sys.argv[2])
    if role in ROLES:
        ROLES[role](options)
    else:
        asyncio.run(_run(ASYNC_ROLES[role], options))
    output("stopped")


if __name__ == "__main__":
    main()
