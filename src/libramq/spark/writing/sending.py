"""The Spark task that writes: Arrow record batches in, messages out. Waits for absent brokers.

A producer stays connected from task to task, on its own thread. It gets rows batch by batch, and a task is
done when brokers have stored every row.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from libramq.client.blocking_cluster import BlockingCluster, Timeouts
from libramq.client.network_thread import NetworkThread
from libramq.client.producing.producer import Producer, hand_over
from libramq.client.producing.queue_selector import QueueSelector, by_hash
from libramq.errors import InvalidMessage, LibraError, RemoteError
from libramq.message.message import Message
from libramq.message.names import AUTO_CREATE_TOPIC
from libramq.message.properties import UNIQ_KEY
from libramq.spark.writing.sink_options import SinkOptions
from libramq.transport.access import OPEN

#: Ours: messages queued before the producer handles responses.
TURN: Final = 200
SENDERS_MAX: Final = 8

_senders: dict[tuple[int, SinkOptions], "Sender"] = {}


def await_servers(options: SinkOptions) -> None:
    """Wait for the name servers and the topic's brokers, up to the send timeout.

    A producer by itself gives up within seconds. It will report any other error.
    """
    timeouts = Timeouts(retry_ms=options.send_timeout_ms)
    cluster = BlockingCluster(options.namesrv, timeouts=timeouts, access=options.access or OPEN)
    with closing(cluster), suppress(RemoteError):
        topic = options.topic or AUTO_CREATE_TOPIC
        cluster.patiently(lambda: cluster.queues(topic))


class Sender:
    """A producer on its own thread."""

    def __init__(self, options: SinkOptions) -> None:
        await_servers(options)
        access = options.access or OPEN
        self._producer = Producer(
            group=options.group,
            namesrv=options.namesrv,
            send_timeout_ms=options.send_timeout_ms,
            retries=options.retries,
            compress_over_bytes=options.compress_over_bytes,
            credentials=access.credentials,
            tls=access.tls,
        )
        self._thread = NetworkThread("libramq-spark-sink")
        self._thread.start()
        try:
            self._thread.run(self._producer.start()).result()
        except BaseException:
            self._thread.stop()
            raise

    def send(self, messages: Iterable[tuple[Message, str, QueueSelector | None]]) -> int:
        """Queue messages with their unique ids; return their number without waiting until they are stored."""
        return self._thread.run(self._send(messages)).result()

    def flush(self) -> None:
        """Wait until all messages are stored; raises the first LibraError."""
        self._thread.run(self._producer.flush()).result()

    def close(self) -> None:
        """Stop, even with messages in flight."""
        try:
            self._thread.run(self._producer.stop()).result()
        except LibraError:
            pass  # The task has already got the error.
        finally:
            self._thread.stop()

    async def _send(self, messages: Iterable[tuple[Message, str, QueueSelector | None]]) -> int:
        producer, count = self._producer, 0
        for message, unique_id, selector in messages:
            producer.check(message)
            message.properties[UNIQ_KEY] = unique_id  # Users may not set it; this is deliberate.
            hand_over(producer, message, None, None, selector)
            count += 1
            if not count % TURN:
                await producer.wait_for_room()
        return count


def write_batches(options: SinkOptions, batches: Iterable[pa.RecordBatch], ids: Iterator[str]) -> int:
    """Send every row and wait until all are stored; return their number. Raises LibraError."""
    key = os.getpid(), options
    sender = _senders.get(key)
    if sender is None:
        while len(_senders) >= SENDERS_MAX:
            _senders.pop(next(iter(_senders))).close()
        sender = _senders[key] = Sender(options)
    try:
        count = sum(sender.send(messages_of(options, batch, ids)) for batch in batches)
        sender.flush()
    except BaseException:
        del _senders[key]  # Messages in flight must not affect the next task.
        sender.close()
        raise
    return count


def messages_of(
    options: SinkOptions, batch: pa.RecordBatch, ids: Iterator[str]
) -> Iterator[tuple[Message, str, QueueSelector | None]]:
    """Yield the messages of a batch's rows, each with its unique id and queue selector."""
    columns: dict[str, Iterable[Any]] = {
        name: batch.column(name).to_pylist() for name in batch.schema.names if name != "body"
    }
    nothing = repeat(None)
    topics = nothing if options.topic is not None else columns["topic"]
    rows = zip(
        batch.column("body").cast(pa.binary()).to_pylist(),
        topics,
        columns.get("key", nothing),
        columns.get("tag", nothing),
        columns.get("properties", nothing),
        columns.get("uniqueId", nothing),
        columns.get("delayLevel", nothing),
        strict=False,
    )
    for body, topic, keys, tag, properties, row_id, delay_level in rows:
        derived = next(ids)  # One for every row, so that rows with their own id do not shift the others.
        topic = topic or options.topic
        if body is None or topic is None:
            raise InvalidMessage(f"a row without {'body' if body is None else 'topic'} cannot be a message")
        level = options.delay_level if options.delay_level is not None else delay_level
        message = Message(
            topic,
            body,
            tags=tag or None,
            keys=keys or (),
            properties={name: value for name, value in properties or () if value},
            delay_level=level or 0,
        )
        yield message, row_id or derived, by_hash(keys) if options.by_key and keys else None
