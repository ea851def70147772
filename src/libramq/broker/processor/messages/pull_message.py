"""PULL_MESSAGE, LITE_PULL_MESSAGE: RocketMQ's pulls as calls of `Reading`, the response code of each result,
and the format of the reply.

Upstream: PullMessageProcessor.java, DefaultPullMessageResultHandler.java.
"""

from collections.abc import Callable
from typing import Final

from libramq.broker.groups.pull import Pull, PullResult, PullStatus, parse_ahead
from libramq.broker.messages.reading import Reading
from libramq.codes import RequestCode, ResponseCode
from libramq.formats.route import MASTER_ID
from libramq.kernel.work import Work
from libramq.remoting.headers import PullMessageHeader
from libramq.rpc.broker_calls import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.rpc.responder import RequestWaiter
from libramq.store.reading.read import ReadResult, ReadStatus

_CODES: Final = {
    PullStatus.NOTHING_YET: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NOTHING_MATCHED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_MOVED: ResponseCode.PULL_OFFSET_MOVED,
}
_FOUND: Final = ReadStatus.FOUND.name
#: Ours: up to this length of its tag expression, a held pull keeps its request unchanged.
KEPT_CHARACTERS_MAX: Final = 256


class PullMessage:
    """The processor of pulls. answer: sends the reply, at once or after the pull was held.

    suggested: returns the id of the broker from which a group should continue after a read: 0 is the master.
    """

    def __init__(
        self,
        reading: Reading,
        *,
        answer: Callable[[Request, Outcome], None],
        suggested: Callable[[str, ReadResult], int] | None = None,
    ) -> None:
        self._reading = reading
        self._answer = answer
        self._suggested = suggested

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def handle(self, request: Request, *, parsed_by: int | None = None) -> Outcome:
        """Answer a pull, or hold it. parsed_by: the version of users at the arrival of a long expression."""
        header: PullMessageHeader = request.header
        flag = header.sys_flag
        is_long = header.subscription is not None and len(header.subscription) > KEPT_CHARACTERS_MAX
        if is_long and parsed_by is None and flag & PULL_SUBSCRIPTION:
            return self._handle_parsed(request)
        pull = Pull(
            waiter=RequestWaiter(request, self._answer, self._reply_to(header.consumer_group)),
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
            count_max=max(1, header.max_msg_nums),
            bytes_max=header.max_msg_bytes,
            expression=header.subscription or "" if flag & PULL_SUBSCRIPTION else None,
            expression_type=header.expression_type,
            subscription_version=header.sub_version,
            member=header.lb_member,
            epoch=header.lb_queue_epoch,
            topic_start=header.lb_topic_start or 0,
            takes_batches=bool(header.lb_takes_batches),
            commit_offset=header.commit_offset if flag & PULL_COMMIT_OFFSET else None,
            hold_ms=header.suspend_timeout_millis if flag & PULL_SUSPEND else None,
            users_version=parsed_by,
        )
        self._reading.pull(pull, wall_ms=request.wall_ms, now_ms=request.monotonic_ms)
        return HOLD

    def _handle_parsed(self, request: Request) -> Work[Outcome]:
        users_version = self._reading.users_version
        yield from parse_ahead(request.header.subscription or "", request.header.expression_type)
        return self.handle(request, parsed_by=users_version)

    def _reply_to(self, group: str) -> Callable[[PullResult], Reply]:
        suggested = self._suggested
        if suggested is None:
            return _reply
        return lambda result: _reply(result, suggested(group, result.read))


def _reply(result: PullResult, suggested: int = MASTER_ID) -> Reply:
    read = result.read
    ext = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(read.next_offset),
        "minOffset": str(read.min_offset),
        "maxOffset": str(read.max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    if result.status is PullStatus.FOUND:  # Enumerations are slow as keys, and their names even slower.
        return Reply(ResponseCode.SUCCESS, _FOUND, ext, pieces=read.data)
    return Reply(_CODES[result.status], read.status.name, ext, pieces=read.data)
