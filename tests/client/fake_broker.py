"""A name server and a broker in one thread. It holds records in memory and can be made to misbehave."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence

from libramq.codes import RequestCode, ResponseCode
from libramq.filter.tag import parse_tag_filter
from libramq.formats.document import encode_body
from libramq.formats.route import BrokerData, QueueData, TopicRouteData, away_remark
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records, encode_record
from libramq.remoting.body.cluster import ClusterInfo, TopicList
from libramq.remoting.body.consumers import ConsumerList
from libramq.remoting.command import FLAG_ONEWAY, Command, reply_to
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import encode_frame
from libramq.remoting.headers import PullMessageHeader, QueueHeader, decode_header

READ_BYTES = 1 << 16
FIRST_STORED_MS = 1_700_000_000_001


def record(queue: MessageQueue, offset: int, body: bytes, properties: bytes = b"") -> bytes:
    return encode_record(
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        physical_offset=offset * 1000,
        body=body,
        properties=properties,
        born_timestamp_ms=1_700_000_000_000 + offset,
        store_timestamp_ms=FIRST_STORED_MS + offset,
    )


class FakeBroker:
    """A name server and a broker that share one port.

    queues: the records of each queue by offset. cap: messages a pull brings at most.
    hang_up_after: close the connection instead of answering that pull, counted from now. is_slave: the
    route names it as a slave. committed and members: by group. away_for, silent_for: how many of the next
    requests for a route say that the broker is away, or end the connection.
    """

    def __init__(self, *, cap: int = 32) -> None:
        self.queues: dict[MessageQueue, dict[int, bytes]] = {}
        self.minimum: dict[MessageQueue, int] = {}
        self.cap = cap
        self.requests: list[int] = []
        self.pulls: list[tuple[int, int]] = []
        self.hang_up_after: int | None = None
        self.is_slave = False
        self.away_for = self.silent_for = 0
        self.knows_topics = True  # Whether the broker does; the route always does.
        self.committed: dict[str, dict[MessageQueue, int]] = {}
        self.members: dict[str, list[str]] = {}
        self.registered: set[str] = set()  # Brokers without queues.
        self.subscriptions: list[tuple[str, str]] = []
        self.refuses_sql = False
        self.parses = True  # Whether subscriptions' expressions pass its check.
        self.address = ""

    def fill(
        self,
        topic: str,
        queue_count: int,
        message_count: int,
        *,
        broker_name: str = "broker-a",
        tags: Sequence[bytes] = (b"t",),
    ) -> None:
        for queue_id in range(queue_count):
            queue = MessageQueue(topic, broker_name, queue_id)
            held = self.queues.setdefault(queue, {})
            for offset in range(len(held), len(held) + message_count):
                held[offset] = record(
                    queue,
                    offset,
                    b"%d/%d" % (queue_id, offset),
                    b"TAGS\x01%s\x02KEYS\x01k\x02" % tags[offset % len(tags)],
                )

    def end(self, queue: MessageQueue) -> int:
        return max(self.queues[queue], default=-1) + 1

    def answer(self, request: Command) -> Command | None:
        self.requests.append(request.code)
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                if self.silent_for:
                    self.silent_for -= 1
                    return None
                return self._route(request)
            case RequestCode.GET_MAX_OFFSET:
                return reply_to(request, 0, ext={"offset": str(self.end(self._queue(request)))})
            case RequestCode.GET_MIN_OFFSET:
                return reply_to(request, 0, ext={"offset": str(self.minimum.get(self._queue(request), 0))})
            case RequestCode.PULL_MESSAGE:
                return self._pull(request)
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                topics = sorted({queue.topic for queue in self.queues})
                return reply_to(request, 0, body=encode_body(TopicList(topic_list=topics)))
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                brokers = {name: self._broker_data(name) for name in self._broker_names()}
                return reply_to(request, 0, body=encode_body(ClusterInfo(broker_addr_table=brokers)))
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return reply_to(request, 0, ext={"offset": str(self._search(request))})
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = self.members.get(request.ext["consumerGroup"], [])
                if not members:
                    return reply_to(request, ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
                return reply_to(request, 0, body=encode_body(ConsumerList(consumer_id_list=members)))
            case RequestCode.CHECK_CLIENT_CONFIG if not self.parses:
                return reply_to(request, ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark="Encountered <EOF>")
            case RequestCode.HEART_BEAT | RequestCode.UNREGISTER_CLIENT:
                return reply_to(request, 0)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                queue = self._queue(request)
                group = self.committed.setdefault(request.ext["consumerGroup"], {})
                group[queue] = int(request.ext["commitOffset"])
                return None if request.flag & FLAG_ONEWAY else reply_to(request, 0)
        return reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def _queue(self, request: Command) -> MessageQueue:
        header = decode_header(request, QueueHeader)
        (queue,) = [q for q in self.queues if q.topic == header.topic and q.queue_id == header.queue_id]
        return queue

    def _route(self, request: Command) -> Command:
        topic = request.ext["topic"]
        queues = [queue for queue in self.queues if queue.topic == topic]
        if self.away_for or not queues:
            remark = "no route" + away_remark(["broker-a"] if self.away_for else [])
            self.away_for = max(0, self.away_for - 1)
            return reply_to(request, ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        names = sorted({queue.broker_name for queue in queues})
        counts = {name: sum(queue.broker_name == name for queue in queues) for name in names}
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=n, read_queue_nums=c, write_queue_nums=c, perm=6)
                for n, c in counts.items()
            ],
            broker_datas=[self._broker_data(name) for name in names],
        )
        return reply_to(request, 0, body=encode_body(route))

    def _broker_names(self) -> list[str]:
        return sorted({queue.broker_name for queue in self.queues} | self.registered)

    def _broker_data(self, name: str) -> BrokerData:
        return BrokerData(cluster="c", broker_name=name, broker_addrs={int(self.is_slave): self.address})

    def _search(self, request: Command) -> int:
        """Search by time; message n was stored n ms after the first."""
        queue, wanted_ms = self._queue(request), int(request.ext["timestamp"])
        return min(max(wanted_ms - FIRST_STORED_MS, self.minimum.get(queue, 0)), self.end(queue))

    def _pull(self, request: Command) -> Command | None:
        header = decode_header(request, PullMessageHeader)
        queue = self._queue(request)
        self.pulls.append((header.queue_offset, header.max_msg_nums))
        if not self.knows_topics:
            return reply_to(request, ResponseCode.TOPIC_NOT_EXIST, remark="apply first please!")
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
        self.subscriptions.append((header.expression_type or "", header.subscription or ""))
        if header.expression_type == "SQL92" and self.refuses_sql:
            return reply_to(request, ResponseCode.SYSTEM_ERROR, remark="no filter by SQL92")
        found = [held[at] for at in range(offset, stop) if at in held]
        if header.expression_type == "TAG":
            found = [one for one in found if _passes(one, header.subscription)]
        code = 0 if found else ResponseCode.PULL_RETRY_IMMEDIATELY
        return reply_to(request, code, ext={**ext, "nextBeginOffset": str(stop)}, body=b"".join(found))


def _passes(stored: bytes, expression: str | None) -> bool:
    """Compare only the first letter of the tag, as coarsely as by hash."""
    wanted = parse_tag_filter(expression).tags
    tag = decode_records(stored)[0].tags or ""
    return expression in (None, "*") or tag[:1] in {each[:1] for each in wanted}


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
                        if reply is None and not request.flag & FLAG_ONEWAY:
                            return
                        if reply is not None:
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
