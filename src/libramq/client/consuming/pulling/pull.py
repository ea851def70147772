"""The pull: one request for a queue's messages from an offset on, and the messages in its answer.

It commits nothing, unlike upstream's: multi-threaded brokers let it overtake later commits.
Upstream: impl/MQClientAPIImpl.pullMessage, PullAPIWrapper.java.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.pulling.pulled_records import PulledRecords
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, FilterRefused, LibraError
from libramq.fencing import Claim
from libramq.filter.sql import SQL92
from libramq.filter.subscription import Selector, kind_of
from libramq.logs import get_logger
from libramq.message import properties as names
from libramq.message.inner_batch import decode_pulled
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import damaged_records
from libramq.remoting.headers import PullMessageHeader
from libramq.rpc.broker_calls import PULL_SUBSCRIPTION, PULL_SUSPEND, PullReply, pull_message
from libramq.rpc.call import Call

log = get_logger(__name__)

#: DefaultMQPushConsumerImpl: how long the broker may hold a pull, and how long we wait for it.
HOLD_MS: Final = 15_000
PULL_TIMEOUT_MS: Final = 30_000
#: The answers to a pull that its expression is the cause of. SYSTEM_ERROR: enablePropertyFilter is off.
_FILTER_REFUSED: Final = frozenset({
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.FILTER_DATA_NOT_EXIST,
})  # fmt: skip


class Pull(NamedTuple):
    """A pull under way.

    claim: under which the queue is open in a coordinated group. number: of the position, which may change
    meanwhile. as_records: its messages are wanted as PulledRecords. accepts_damaged: bodies are taken even if
    they do not match their checksums.
    """

    queue: MessageQueue
    offset: int
    claim: Claim | None
    number: int
    as_records: bool
    accepts_damaged: bool

    def call(
        self,
        settings: ConsumerSettings,
        selector: Selector,
        *,
        count_max: int,
        topic_start: int,
        takes_batches: bool,
    ) -> Call[PullReply]:
        """Return the request. topic_start: what the queue's opening named.

        takes_batches: inner batches may come whole, perhaps more messages than `count_max`.
        """
        claim = self.claim
        header = PullMessageHeader(
            consumer_group=settings.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.offset,
            max_msg_nums=count_max,
            # Without it brokers filter by their group's newest heartbeat, which may be another member's.
            sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION,
            subscription=selector.expression,
            commit_offset=0,
            suspend_timeout_millis=HOLD_MS,
            max_msg_bytes=settings.pull_batch_bytes,
            expression_type=kind_of(selector),
            sub_version=0,
            lb_member=claim.member if claim else None,
            lb_queue_epoch=claim.epoch if claim else None,
            lb_topic_start=topic_start or None,
            lb_takes_batches=takes_batches or None,
        )
        return pull_message(header)

    def messages(self, reply: PullReply) -> Sequence[MessageExt]:
        """Return the messages of a reply, with the properties that Java's client adds: the queue's bounds.

        Those whose bodies are stored damaged are delivered all the same, as by Java's client: if the reply
        were refused for their sake, nobody would read their queue any more.
        """
        queue, body, check_crc = self.queue, reply.body, not self.accepts_damaged
        if not check_crc:
            for head in damaged_records(body):
                log.error(
                    "a message is delivered as it is stored: its body does not match its checksum",
                    queue=str(queue),
                    offset=head.queue_offset,
                )
        if self.as_records:
            return PulledRecords.of(body, queue.broker_name, self.offset, check_crc=check_crc)
        bounds = {names.MIN_OFFSET: str(reply.min_offset), names.MAX_OFFSET: str(reply.max_offset)}
        return decode_pulled(
            body, self.offset, check_crc=check_crc, broker_name=queue.broker_name, added=bounds
        )


def filter_error(error: LibraError, selector: Selector, address: str) -> LibraError:
    """Return the error of a pull; FilterRefused if its expression is the cause."""
    is_by_sql = kind_of(selector) == SQL92
    if is_by_sql and isinstance(error, BrokerError) and error.response_code in _FILTER_REFUSED:
        return FilterRefused(error.response_code, error.remark, where=address)
    return error
