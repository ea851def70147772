"""A name server and brokers small enough to read, in the test's own event loop, with faults on request.

Messages are in lists, offsets in dicts. `refuse` answers the next requests of a code with an error,
`silence` leaves them unanswered, `cut` closes their connection.
"""

from collections import defaultdict, deque

from libramq.clock import SystemClock
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats import fastjson
from libramq.formats.document import decode_body, encode_body
from libramq.formats.route import BrokerData, QueueData, TopicRouteData
from libramq.message.batch import decode_batch
from libramq.message.names import retry_topic
from libramq.message.record import encode_record
from libramq.remoting.body.cluster import ClusterInfo, TopicList
from libramq.remoting.body.consumers import ConsumerList, LockBatchBody, LockBatchReply
from libramq.remoting.body.heartbeat import HeartbeatData
from libramq.remoting.command import FLAG_ONEWAY, VERSION, Command, reply_to
from libramq.remoting.frame import encode_frame
from libramq.transport.server import Server

SENDS = (R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE)


class FakeServer:
    """A listening socket. Subclasses answer requests in methods named after them."""

    def __init__(self):
        self.requests = []
        self.version = VERSION
        self.touched = lambda: None
        self._faults = defaultdict(deque)
        self._server = Server(self, SystemClock().monotonic_ms)
        self.address = ""

    async def start(self, port=0):
        port = await self._server.listen("127.0.0.1", port)
        self.address = f"127.0.0.1:{port}"

    async def close(self):
        await self._server.close()

    def refuse(self, code, response_code, times=1):
        self._faults[code].extend([response_code] * times)

    def silence(self, code, times=1):
        self._faults[code].extend(["silence"] * times)

    def cut(self, code, times=1):
        self._faults[code].extend(["cut"] * times)

    def count(self, *codes):
        return sum(request.code in codes for request in self.requests)

    def of(self, *codes):
        return [request for request in self.requests if request.code in codes]

    def connected(self, peer):
        pass

    def closed(self, peer):
        pass

    def received(self, peer, commands):
        for command in commands:
            self.requests.append(command)
            fault = self._faults[command.code].popleft() if self._faults[command.code] else None
            if fault == "cut":
                peer.close("the test cuts it")
            elif fault is None:
                answer = getattr(self, R(command.code).name.lower())
                answer(peer, command)
            elif fault != "silence":
                self.answer(peer, command, fault, remark="the test refuses it")
        self.touched()

    def answer(self, peer, request, code=C.SUCCESS, *, remark=None, body=b"", **ext):
        if not request.is_oneway:
            texts = {name: str(value) for name, value in ext.items()}
            reply = reply_to(request, code, remark=remark, ext=texts, body=body)
            reply.version = self.version
            peer.write(encode_frame(reply))


class FakeNameServer(FakeServer):
    """A name server that knows brokers, and queries them for their topics at each request."""

    def __init__(self, *brokers):
        super().__init__()
        self.brokers = list(brokers)
        self.auto_create = True
        self.deleted = []
        #: The names of absent brokers that had every topic; Apache's name servers do not report them.
        self.absent = None

    def get_routeinfo_by_topic(self, peer, request):
        topic = request.ext["topic"]
        having = [broker for broker in self.brokers if topic in broker.topics]
        if topic == "TBW102" and self.auto_create:
            having = self.brokers
        if not having:
            self.answer(peer, request, C.TOPIC_NOT_EXIST, remark=f"no {topic}")
            return
        route = TopicRouteData(
            queue_datas=[
                QueueData(
                    broker_name=broker.name,
                    read_queue_nums=broker.topics.get(topic, 8),
                    write_queue_nums=broker.topics.get(topic, 8),
                    perm=6,
                )
                for broker in having
            ],
            broker_datas=[broker.data for broker in having],
            lb_absent_brokers=self.absent,
        )
        self.answer(peer, request, body=encode_body(route))

    def get_broker_cluster_info(self, peer, request):
        info = ClusterInfo(
            broker_addr_table={broker.name: broker.data for broker in self.brokers},
            cluster_addr_table={"c": [broker.name for broker in self.brokers]},
        )
        self.answer(peer, request, body=encode_body(info))

    def delete_topic_in_namesrv(self, peer, request):
        self.deleted.append(request.ext["topic"])
        self.answer(peer, request)

    def get_all_topic_list_from_nameserver(self, peer, request):
        topics = {topic for broker in self.brokers for topic in broker.topics}
        self.answer(peer, request, body=encode_body(TopicList(topic_list=list(topics))))


class FakeBroker(FakeServer):
    """One broker. It answers held pulls when a message arrives."""

    def __init__(self, name="a", **topics):
        super().__init__()
        self.name = name
        self.topics = topics
        self.queues = defaultdict(list)
        self.min_offsets = defaultdict(int)
        self.offsets = {}
        self.members = defaultdict(dict)
        self.held = []
        self.sent_back = []
        self.locks = {}

    @property
    def data(self):
        return BrokerData(cluster="c", broker_name=self.name, broker_addrs={0: self.address})

    def closed(self, peer):
        for group, members in self.members.items():
            self._forget(group, [client_id for client_id, each in members.items() if each is peer])

    def put(self, topic, queue_id, body, properties="UNIQ_KEY\x01?\x02", reconsume_times=0):
        """Store a message as a producer's send does."""
        queue = self.queues[topic, queue_id]
        offset = self.min_offsets[topic, queue_id] + len(queue)
        text = properties.encode() if isinstance(properties, str) else properties
        queue.append(
            encode_record(
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                physical_offset=1000 * queue_id + offset,
                body=body,
                properties=text,
                reconsume_times=reconsume_times,
                store_timestamp_ms=offset,
            )
        )
        held, self.held = self.held, []
        for peer, request in held:
            self.pull_message(peer, request)
        return offset

    def send_message_v2(self, peer, request):
        topic, queue_id = request.ext["b"], int(request.ext["e"])
        self.topics.setdefault(topic, int(request.ext["d"]))
        if request.ext["m"] == "true":
            items = [(item.body, item.properties) for item in decode_batch(request.body)]
        else:
            items = [(request.body, request.ext["i"])]
        offsets = [self.put(topic, queue_id, body, properties) for body, properties in items]
        ids = ",".join(f"{self.name}-{queue_id}-{offset}" for offset in offsets)
        self.answer(peer, request, msgId=ids, queueId=queue_id, queueOffset=offsets[0])

    send_batch_message = send_message_v2

    def heart_beat(self, peer, request):
        data = decode_body(request.body, HeartbeatData)
        for consumer in data.consumer_data_set:
            self.topics.setdefault(retry_topic(consumer.group_name), 1)
            members = self.members[consumer.group_name]
            if members.get(data.client_id) is not peer:
                members[data.client_id] = peer
                self._notify(consumer.group_name)
        self.answer(peer, request)

    def unregister_client(self, peer, request):
        if "consumerGroup" in request.ext:
            self._forget(request.ext["consumerGroup"], [request.ext["clientID"]])
        self.answer(peer, request)

    def get_consumer_list_by_group(self, peer, request):
        members = list(self.members[request.ext["consumerGroup"]])
        if members:
            self.answer(peer, request, body=encode_body(ConsumerList(consumer_id_list=members)))
        else:
            self.answer(peer, request, C.SYSTEM_ERROR, remark="no consumer")

    def group_begin(self, peer, request):
        self.answer(peer, request, C.REQUEST_CODE_NOT_SUPPORTED)

    def query_consumer_offset(self, peer, request):
        offset = self.offsets.get(_queue_of(request))
        if offset is None:
            self.answer(peer, request, C.QUERY_NOT_FOUND)
        else:
            self.answer(peer, request, offset=offset)

    def update_consumer_offset(self, peer, request):
        self.offsets[_queue_of(request)] = int(request.ext["commitOffset"])
        self.answer(peer, request)

    def get_max_offset(self, peer, request):
        key = request.ext["topic"], int(request.ext["queueId"])
        self.answer(peer, request, offset=self.min_offsets[key] + len(self.queues[key]))

    def get_min_offset(self, peer, request):
        self.answer(peer, request, offset=self.min_offsets[request.ext["topic"], int(request.ext["queueId"])])

    def search_offset_by_timestamp(self, peer, request):
        key, time_ms = (request.ext["topic"], int(request.ext["queueId"])), int(request.ext["timestamp"])
        # Messages are stored at the times 0, 1, 2 …; a wall-clock time is after all of them.
        self.answer(peer, request, offset=time_ms if time_ms < 1_000_000 else self.min_offsets[key])

    def pull_message(self, peer, request):
        ext = request.ext
        key = ext["topic"], int(ext["queueId"])
        first, offset = self.min_offsets[key], int(ext["queueOffset"])
        queue = self.queues[key]
        last = first + len(queue)
        bounds = {"minOffset": first, "maxOffset": last, "suggestWhichBrokerId": 0}
        if not first <= offset <= last:
            self.answer(peer, request, C.PULL_OFFSET_MOVED, nextBeginOffset=max(first, 0), **bounds)
        elif offset == last:
            self.held.append((peer, request))
        else:
            records = queue[offset - first :][: int(ext["maxMsgNums"])]
            body = b"".join(records)
            self.answer(peer, request, body=body, nextBeginOffset=offset + len(records), **bounds)

    def consumer_send_msg_back(self, peer, request):
        self.sent_back.append(request.ext)
        self.answer(peer, request)

    def lock_batch_mq(self, peer, request):
        body = decode_body(request.body, LockBatchBody)
        held = []
        for ref in body.mq_set:
            key = body.consumer_group, ref.topic, ref.queue_id
            if self.locks.setdefault(key, body.client_id) == body.client_id:
                held.append(ref)
        self.answer(peer, request, body=encode_body(LockBatchReply(lock_ok_mq_set=held)))

    def unlock_batch_mq(self, peer, request):
        body = decode_body(request.body, LockBatchBody)
        for ref in body.mq_set:
            key = body.consumer_group, ref.topic, ref.queue_id
            if self.locks.get(key) == body.client_id:
                del self.locks[key]
        self.answer(peer, request)

    def update_and_create_topic(self, peer, request):
        self.topics[request.ext["topic"]] = int(request.ext["writeQueueNums"])
        self.answer(peer, request)

    def get_all_topic_list_from_nameserver(self, peer, request):
        self.answer(peer, request, C.REQUEST_CODE_NOT_SUPPORTED, remark="as every broker answers")

    def delete_topic_in_broker(self, peer, request):
        del self.topics[request.ext["topic"]]
        self.answer(peer, request)

    def get_topic_stats_info(self, peer, request):
        topic = request.ext["topic"]
        table = {
            f'{{"brokerName":"{self.name}","queueId":{number},"topic":"{topic}"}}': {
                "minOffset": 0, "maxOffset": len(self.queues[topic, number]), "lastUpdateTimestamp": 0,
            }
            for number in range(self.topics[topic])
        }  # fmt: skip
        text = ",".join(f"{key}:{fastjson.dumps(value).decode()}" for key, value in table.items())
        self.answer(peer, request, body=f'{{"offsetTable":{{{text}}}}}'.encode())

    def get_consumer_connection_list(self, peer, request):
        members = self.members[request.ext["consumerGroup"]]
        if not members:
            self.answer(peer, request, C.CONSUMER_NOT_ONLINE)
            return
        connections = [
            {"clientId": client_id, "clientAddr": each.address, "language": "PYTHON", "version": 1}
            for client_id, each in members.items()
        ]
        self.answer(peer, request, body=fastjson.dumps({"connectionSet": connections}))

    def _forget(self, group, client_ids):
        for client_id in client_ids:
            self.members[group].pop(client_id, None)
        if client_ids:
            self._notify(group)

    def _notify(self, group):
        for peer in self.members[group].values():
            notice = Command(
                code=R.NOTIFY_CONSUMER_IDS_CHANGED, flag=FLAG_ONEWAY, ext={"consumerGroup": group}
            )
            peer.write(encode_frame(notice))


def _queue_of(request):
    return request.ext["consumerGroup"], request.ext["topic"], int(request.ext["queueId"])
