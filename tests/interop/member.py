"""A member of a group in its own process: it prints deliveries and changes of its queues until "stop".

    python -m tests.interop.member '{"namesrv": …, "group": …, "topic": …}'

Further keys are options of PushConsumer; `dedupe` is the path of a SQLite file, `work_ms` how long a handler
takes.
"""

import json
import sys
import threading
import time
from typing import Any

from libramq.client import ConsumeFrom
from libramq.client.consuming.handling.handlers import Handler
from libramq.client.idempotence import SqliteStore, idempotent
from libramq.message import MessageExt, MessageQueue
from libramq.sync import PushConsumer

LEASE_MS = 2_000


class Output:
    """Prints events as JSON lines, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, event: str, **fields: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps({"event": event, "atMs": time.time() * 1000, **fields}) + "\n")
            sys.stdout.flush()


def main() -> None:
    options = json.loads(sys.argv[1])
    topic, work_ms = options.pop("topic"), options.pop("work_ms", 0)
    dedupe = options.pop("dedupe", None)
    output = Output()
    pause = threading.Event()

    def handle(messages: list[MessageExt]) -> None:
        for message in messages:
            output(
                "message",
                queueId=message.queue_id,
                offset=message.queue_offset,
                body=message.body.decode(),
                reconsumeTimes=message.reconsume_times,
            )
        if work_ms:
            pause.wait(work_ms / 1000)

    def tell(kind: str) -> Any:
        def hook(queues: tuple[MessageQueue, ...]) -> None:
            ids = [queue.queue_id for queue in queues if queue.topic == topic]
            if ids:
                output(kind, queues=ids)

        return hook

    hooks = {f"on_{kind}": tell(kind) for kind in ("assigned", "revoked", "lost")}
    if options.get("pop"):  # It owns no queues.
        hooks = {}
    consumer = PushConsumer(consume_from=ConsumeFrom.FIRST_OFFSET, **hooks, **options)
    handler: Handler = handle
    if dedupe is not None:
        once = idempotent(handle, store=SqliteStore(dedupe, lease_ms=LEASE_MS))

        def handler(messages: list[MessageExt]) -> Any:
            output("delivered", bodies=[message.body.decode() for message in messages])
            return once(messages)

    consumer.subscribe(topic, "*", handler)
    consumer.start()
    output("started", clientId=consumer.client_id)
    for line in sys.stdin:
        if line.strip() == "stop":
            break
    consumer.stop()
    output("stopped")


if __name__ == "__main__":
    main()
