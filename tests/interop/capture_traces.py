"""The recorder of traces: what Apache's Java client writes about messages, and how Apache's decoder reads it.

    python -m tests.interop.capture_traces     # writes tests/vectors/traces.json

It records bodies of RMQ_SYS_TRACE_TOPIC at Apache's broker, from a producer and a consumer with tracing on,
and a record of each type as Apache's encoder writes it.
"""

import argparse
import json
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from libramq.client.queue_reader import QueueReader
from libramq.errors import RouteNotFound
from libramq.message.names import TRACE_TOPIC
from libramq.message.record import decode_records
from tests.interop.apache import SMALL_STORE, VERSION, ApacheBroker, ApacheNameServer, set_up, start_program
from tests.interop.cluster import Cluster

VECTORS = Path(__file__).parent.parent / "vectors"
MESSAGES = 3
FLUSHED_WITHIN_S = 30.0  # A client sends its traces every 5 s.


def trace_bodies(namesrv: str) -> list[bytes]:
    """Return all bodies of the trace topic; none if it does not exist."""
    with closing(QueueReader([namesrv], group="TOOLS_CONSUMER")) as reader:
        try:
            queues = reader.queues(TRACE_TOPIC)
        except RouteNotFound:
            return []  # No client has sent its traces yet.
        starts, ends = reader.min_offsets(queues), reader.max_offsets(queues)
        return [
            message.body
            for queue in queues
            for part in reader.read(queue, starts[queue], ends[queue])
            for message in decode_records(part.body)
        ]


def record_traces(home: Path) -> list[bytes]:
    """Return the traces of a message, a batch, and a consumer that fails each message once."""
    with ExitStack() as stack:
        nameserver = ApacheNameServer(home / "namesrv")
        stack.callback(nameserver.stop)
        nameserver.wait_ready()
        settings = {**SMALL_STORE, "traceTopicEnable": "true"}
        broker = ApacheBroker(home / "broker", namesrv=nameserver.address, settings=settings)
        stack.callback(broker.process.kill)
        broker.wait_ready()
        cluster = Cluster("apache", nameserver.address, home)
        stack.callback(cluster.stop_programs, keep_producers=False)
        cluster.create_topic("Orders", 2)
        producer = cluster.start("Produce", {"group": "shop", "trace": True})
        producer.wait_event("started")
        producer.ask(
            "sent", {"kind": "sync", "topic": "Orders", "body": "one", "tags": "new", "keys": "k1 k2"}
        )
        batch = [{"body": "two"}, {"body": "three"}]
        producer.ask("sent", {"kind": "batch", "topic": "Orders", "messages": batch})
        consumer = cluster.consumer("billing", "Orders", trace=True, fail="first")
        consumer.wait_count(2 * MESSAGES, "message")
        consumer.finish()
        producer.finish()

        def all_told() -> bool:
            told = b"".join(trace_bodies(nameserver.address))
            return told.count(b"SubAfter") == 2 * MESSAGES and told.count(b"Pub") >= 2

        cluster.wait_until(all_told, "traces are missing", within_s=FLUSHED_WITHIN_S)
        return trace_bodies(nameserver.address)


def vectors(home: Path) -> list[dict[str, Any]]:
    found = [{"what": "client", "data": body.decode()} for body in record_traces(home)]
    with start_program("Traces", {}, home=home / "codec") as codec:
        codec.wait_event("encoded_all")
        found += [{"what": one["what"], "data": one["data"]} for one in codec.of("encoded")]
        for one in found:
            one["records"] = codec.ask("decoded", {"data": one["data"]})["records"]
        codec.finish()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Record traces of Apache's Java client.")
    parser.add_argument("--to", type=Path, default=VECTORS, help="directory of the vectors")
    to: Path = parser.parse_args().to
    set_up()
    with tempfile.TemporaryDirectory() as home:
        described = {
            "program": "Apache RocketMQ: broker, Java client, TraceDataEncoder",
            "version": VERSION,
            "command": "python -m tests.interop.capture_traces",
            "traces": vectors(Path(home)),
        }
    path = to / "traces.json"
    path.write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.name}: {len(described['traces'])} bodies, {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
