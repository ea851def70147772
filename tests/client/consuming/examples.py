"""Values shared by tests of the client's core."""

from libramq.formats.route import BrokerData, QueueData, TopicRouteData
from libramq.message.message import MessageExt

READ_WRITE = 6


def route(
    queues: int = 4,
    *,
    brokers: tuple[str, ...] = ("a",),
    perm: int = READ_WRITE,
    slaves: bool = False,
    masters: bool = True,
) -> TopicRouteData:
    """Return the route of a topic with this many queues at each broker; broker "a" is at "a:1", its slave
    at "a:2".
    """
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name in brokers
        ],
        broker_datas=[
            BrokerData(
                cluster="c",
                broker_name=name,
                broker_addrs=({0: f"{name}:1"} if masters else {}) | ({1: f"{name}:2"} if slaves else {}),
            )
            for name in brokers
        ],
    )


def message(
    offset: int,
    *,
    topic: str = "T",
    body: bytes = b"x",
    tag: str | None = None,
    queue_id: int = 0,
    stored_ms: int = 2,
) -> MessageExt:
    """Return a message as a pull returns it."""
    properties = {"UNIQ_KEY": f"id-{offset}"} | ({"TAGS": tag} if tag else {})
    return MessageExt(
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=1000 + offset,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=("127.0.0.1", 1),
        store_timestamp_ms=stored_ms,
        store_host=("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
        store_size=100,
        body_crc=0,
        broker_name="a",
    )
