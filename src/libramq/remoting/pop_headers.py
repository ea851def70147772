"""Typed headers of POP's requests.

Upstream: remoting/protocol/header/*.java.
"""

from typing import Final

from libramq.formats.document import Int, Long
from libramq.remoting.headers import Header

#: Ours: how many messages each check point of a pop has, in the order of `startOffsetInfo` and of the body.
#: Whoever sends `lbMaxMsgNums` gets it from brokers of ours, and knows them by it.
MESSAGE_COUNTS: Final = "lbMsgCounts"
#: Ours: how long a broker had a pop before it took the messages, which are invisible from then on. A client
#: whose clock is set otherwise cannot tell that from `popTime`.
HELD_MS: Final = "lbHeldMs"


class PopMessageHeader(Header):
    """POP_MESSAGE (PopMessageRequestHeader.java). init_mode: where a new group begins: 0 first, 1 last.

    born_time: by the client's clock; 0: when the broker has read it, at Apache's brokers too.

    lb_max_msg_nums: ours, how many messages a broker of ours may return; Apache's knows the other alone, and
    refuses more than 32.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    init_mode: Int
    born_time: Long = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    lb_max_msg_nums: Int | None = None


class AckMessageHeader(Header):
    """ACK_MESSAGE (AckMessageRequestHeader.java). extra_info: the message's POP_CK."""

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long


class ChangeInvisibleTimeHeader(AckMessageHeader):
    """CHANGE_MESSAGE_INVISIBLETIME (ChangeInvisibleTimeRequestHeader.java).

    lb_unseen: ours; no program has seen the message, so that its next delivery is no further attempt.
    """

    invisible_time: Long
    lb_unseen: bool | None = None


class NotificationHeader(Header):
    """NOTIFICATION: answer once there is a message (NotificationRequestHeader.java)."""

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long = 0
    order: bool | None = None
    attempt_id: str | None = None


class PollingInfoHeader(Header):
    """POLLING_INFO: how many pops wait (PollingInfoRequestHeader.java)."""

    consumer_group: str
    topic: str
    queue_id: Int


class PeekMessageHeader(PollingInfoHeader):
    """PEEK_MESSAGE (PeekMessageRequestHeader.java)."""

    max_msg_nums: Int
