"""The refusals of a slave: what only a master does, with Apache's codes.

    sends, messages sent back                SYSTEM_BUSY, as clients then turn to another broker
    changes of topics, groups and offsets    SYSTEM_ERROR, for the operator
    recalls of timer messages                SLAVE_NOT_AVAILABLE
    pulls, unless slaveReadEnable            SYSTEM_BUSY
    pops, locks, assignments, openings, coordinators: SYSTEM_BUSY; ours: a slave must not own any of these;
    an acting master locks queues, and serves pops (`pop_at_slave.py`, `ack_at_slave.py`)

Upstream: SendMessageProcessor.rejectRequest, PullMessageProcessor.rejectRequest,
AdminBrokerProcessor.validateSlave, resetOffsetInner.
"""

from collections.abc import Callable, Mapping
from typing import Final

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import BatchProcessor, Processor, Request

_BUSY: Final = Reply(
    ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while: this is a slave"
)
_UNREADABLE: Final = Reply(
    ResponseCode.SYSTEM_BUSY,
    "[REJECTREQUEST]system busy, start flow control for a while: slaveReadEnable is false here",
)
_UNCHANGEABLE: Final = Reply(
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
)
_NO_RESET: Final = Reply(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")

_REFUSED: Final[Mapping[int, Reply]] = {
    **dict.fromkeys(
        (
            R.SEND_MESSAGE,
            R.SEND_MESSAGE_V2,
            R.SEND_BATCH_MESSAGE,
            R.SEND_REPLY_MESSAGE,
            R.SEND_REPLY_MESSAGE_V2,
            R.CONSUMER_SEND_MSG_BACK,
            R.END_TRANSACTION,
            R.RESUME_CHECK_HALF_MESSAGE,
            R.LOCK_BATCH_MQ,
            R.POP_MESSAGE,
            R.ACK_MESSAGE,
            R.BATCH_ACK_MESSAGE,
            R.CHANGE_MESSAGE_INVISIBLETIME,
            R.QUERY_ASSIGNMENT,
            R.SET_MESSAGE_REQUEST_MODE,
            R.OPEN_QUEUE,
            R.GROUP_FIND,
            R.GROUP_JOIN,
            R.GROUP_POLL,
            R.GROUP_RELEASE,
            R.GROUP_LEAVE,
            R.GROUP_REMOVE,
        ),
        _BUSY,
    ),
    **dict.fromkeys(
        (
            R.UPDATE_AND_CREATE_TOPIC,
            R.UPDATE_AND_CREATE_TOPIC_LIST,
            R.DELETE_TOPIC_IN_BROKER,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            R.DELETE_SUBSCRIPTIONGROUP,
        ),
        _UNCHANGEABLE,
    ),
    R.INVOKE_BROKER_TO_RESET_OFFSET: _NO_RESET,
    R.CLONE_GROUP_OFFSET: _NO_RESET,
    R.RECALL_MESSAGE: Reply(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker is slave"),
}


def refuse_at_slave(
    processors: dict[int, Processor],
    batch_processors: dict[int, BatchProcessor],
    *,
    is_readable: bool,
    is_acting: Callable[[], bool],
) -> None:
    """Replace the processors of requests that a slave refuses.

    is_readable: pulls are served. is_acting: whether the slave acts for a master that is gone.
    """
    lock = processors[R.LOCK_BATCH_MQ]
    refused = dict(_REFUSED)
    if not is_readable:
        refused |= {R.PULL_MESSAGE: _UNREADABLE, R.LITE_PULL_MESSAGE: _UNREADABLE}
    for code, reply in refused.items():
        processors[code] = _refusing(reply)
        batch_processors.pop(code, None)
    processors[R.LOCK_BATCH_MQ] = _if_acting(is_acting, lock, processors[R.LOCK_BATCH_MQ])


def _if_acting(is_acting: Callable[[], bool], serve: Processor, refuse: Processor) -> Processor:
    def handle(request: Request) -> Outcome:
        return serve(request) if is_acting() else refuse(request)

    return handle


def _refusing(reply: Reply) -> Processor:
    def refuse(request: Request) -> Outcome:
        return reply

    return refuse
