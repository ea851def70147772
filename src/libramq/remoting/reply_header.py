"""The header of a reply that a broker passes on to the client that waits for it."""

from libramq.formats.document import Int, Long
from libramq.remoting.headers import Header


class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: another client's reply to a request (ReplyMessageRequestHeader.java)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
