"""A name server and broker in one thread, that holds records in memory and can be made to misbehave."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

from libramq.codes import RequestCode, ResponseCode
from libramq.message.queue import MessageQueue
from libramq.message.record import encode_record
from libramq.remoting.body.codec import encode_body
from libramq.remoting.body.route import BrokerData, QueueData, TopicRouteData
from libramq.remoting.command import Command, reply_to
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import encode_frame
from libramq.remoting.headers import PullMessageHeader, QueueHeader, decode_header

READ_BYTES = 1 << 16


def record(queue: MessageQueue, offset: int, body: bytes, properties: bytes = b"") -> bytes:
    return encode_record(
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        physical_offset=offset * 1000,
        body=body,
        properties=properties,
        born_timestamp_ms=1_700_000_000_000 + offset,
        store_timestamp_ms=1_700_000_000_001 + offset,
    )


class FakeBroker:
    """queues: the records of each queue by offset. cap: messages a pull brings at most.

    hang_up_after: close the connection instead of answering that pull, counted from now.
    """

    def __init__(self, *, cap: int = 32) -> None:
        self.queues: dict[MessageQueue, dict[int, bytes]] = {}
        self.minimum: dict[MessageQueue, int] = {}
        self.cap = cap
        self.pulls: list[tuple[int, int]] = []
        self.hang_up_after: int | None = None
        self.address = ""

    def fill(
        self, topic: str, queue_count: int, message_count: int, *, broker_name: str = "broker-a"
    ) -> None:
        for queue_id in range(queue_count):
            queue = MessageQueue(topic, broker_name, queue_id)
            held = self.queues.setdefault(queue, {})
            for offset in range(len(held), len(held) + message_count):
                held[offset] = record(
                    queue, offset, b"%d/%d" % (queue_id, offset), b"TAGS\x01t\x02KEYS\x01k\x02"
                )

    def end(self, queue: MessageQueue) -> int:
        return max(self.queues[queue], default=-1) + 1

    def answer(self, request: Command) -> Command | None:
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(request)
            case RequestCode.GET_MAX_OFFSET:
                return reply_to(request, 0, ext={"offset": str(self.end(self._queue(request)))})
            case RequestCode.GET_MIN_OFFSET:
                return reply_to(request, 0, ext={"offset": str(self.minimum.get(self._queue(request), 0))})
            case RequestCode.PULL_MESSAGE:
                return self._pull(request)
        return reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def _queue(self, request: Command) -> MessageQueue:
        header = decode_header(request, QueueHeader)
        (queue,) = [q for q in self.queues if q.topic == header.topic and q.queue_id == header.queue_id]
        return queue

    def _route(self, request: Command) -> Command:
        topic = request.ext["topic"]
        queues = [queue for queue in self.queues if queue.topic == topic]
        if not queues:
            return reply_to(request, ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        names = sorted({queue.broker_name for queue in queues})
        counts = {name: sum(queue.broker_name == name for queue in queues) for name in names}
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=n, read_queue_nums=c, write_queue_nums=c, perm=6)
                for n, c in counts.items()
            ],
            broker_datas=[
                BrokerData(cluster="c", broker_name=n, broker_addrs={0: self.address}) for n in names
            ],
        )
        return reply_to(request, 0, body=encode_body(route))

    def _pull(self, request: Command) -> Command | None:
        header = decode_header(request, PullMessageHeader)
        queue = self._queue(request)
        self.pulls.append((header.queue_offset, header.max_msg_nums))
        if self.hang_up_after is not None:
            self.hang_up_after -= 1
            if self.hang_up_after < 0:
                self.hang_up_after = None
                return None
        end, low = self.end(queue), self.minimum.get(queue, 0)
        ext = {"minOffset": str(low), "maxOffset": str(end), "suggestWhichBrokerId": "0"}
        offset = header.queue_offset
        if offset < low:
            return reply_to(request, ResponseCode.PULL_OFFSET_MOVED, ext={**ext, "nextBeginOffset": str(low)})
        if offset >= end:
            return reply_to(request, ResponseCode.PULL_NOT_FOUND, ext={**ext, "nextBeginOffset": str(end)})
        stop = min(offset + min(header.max_msg_nums, self.cap), end)
        held = self.queues[queue]
        body = b"".join(held[at] for at in range(offset, stop) if at in held)
        return reply_to(request, 0, ext={**ext, "nextBeginOffset": str(stop)}, body=body)


@contextlib.contextmanager
def serving(broker: FakeBroker) -> Iterator[FakeBroker]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connection: socket.socket = self.request
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = FrameReader()
            with contextlib.suppress(OSError):
                while data := connection.recv(READ_BYTES):
                    for request in reader.receive(data):
                        reply = broker.answer(request)
                        if reply is None:
                            return
                        connection.sendall(encode_frame(reply))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        broker.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield broker
        finally:
            server.shutdown()
            thread.join()
