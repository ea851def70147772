"""PULL_MESSAGE, LITE_PULL_MESSAGE: the messages of a queue from an offset on, now or when there are some.

The order of the checks and their codes are upstream's: PullMessageProcessor.java,
DefaultPullMessageResultHandler.java, PullRequestHoldService.java.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from libramq.broker.consumer_clients import ConsumerClients
from libramq.broker.offset_commits import OffsetCommits
from libramq.catalog import GroupTable, TopicTable
from libramq.clock import Clock, MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.filter.tag import parse_tag_filter
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.offsets import Fences
from libramq.remoting.body.coordination import MODE_EPOCHS
from libramq.remoting.body.heartbeat import BROADCASTING
from libramq.remoting.headers import PullMessageHeader, decode_header
from libramq.rpc.broker_calls import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from libramq.rpc.endpoint import Processor
from libramq.rpc.outcome import HOLD, Outcome, Reply, WaitForDisk
from libramq.rpc.request import Request, failure
from libramq.store.message_store import MessageStore
from libramq.store.read import ReadResult, ReadStatus
from libramq.waits import HeldPull, HeldPulls
from libramq.waits.held_pulls import SUSPEND_MS_MAX

log = get_logger(__name__)

_SQL92: Final = "SQL92"

_CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class Pull(NamedTuple):
    """A pull that was checked: what to read, and for whom.

    member: of a coordinated group; the queue must be open to it under that epoch as long as the pull lasts.
    """

    request: Request
    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int | None
    tag_codes: frozenset[int] | None
    member: str | None
    epoch: int | None


class PullMessage:
    """Serves pulls, and those that were held. answer: gives the answer to a request that was held."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clients: ConsumerClients,
        offsets: OffsetCommits,
        fences: Fences,
        held: HeldPulls[Pull],
        clock: Clock,
        answer: Callable[[Request, Outcome], None],
        readable: bool,
        long_polling: bool,
        short_polling_ms: int,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._fences = fences
        self._held = held
        self._clock = clock
        self._answer = answer
        self._readable = readable
        self._long_polling = long_polling
        self._short_polling_ms = short_polling_ms

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {RequestCode.PULL_MESSAGE: self.handle, RequestCode.LITE_PULL_MESSAGE: self.handle}

    def handle(self, request: Request) -> Outcome:
        """Answer a pull, or hold it."""
        header = decode_header(request.command, PullMessageHeader)
        pull = self._checked(request, header)
        self._check_fence(pull)
        if header.sys_flag & PULL_COMMIT_OFFSET and self._may_commit(pull):
            self._offsets.commit(pull.group, pull.topic, pull.queue_id, header.commit_offset)
        hold_ms = 0
        if header.sys_flag & PULL_SUSPEND:
            hold_ms = header.suspend_timeout_millis if self._long_polling else self._short_polling_ms
            hold_ms = min(max(hold_ms, 0), SUSPEND_MS_MAX)
        self._clients.pulled(
            request.peer, pull.group, pull.topic, pull.queue_id, pull.offset, now_ms=request.monotonic_ms
        )
        return self._read(pull, request.monotonic_ms + hold_ms if hold_ms else None)

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """A queue has more to read, up to an offset: run its held pulls again."""
        for held in self._held.wake(topic, queue_id, end):
            # It is held on when nothing for it came.
            self._run_again(held, held.until_ms, is_woken=False)

    def _expired(self, held: HeldPull[Pull]) -> None:
        self._run_again(held, None, is_woken=True)

    def _run_again(self, held: HeldPull[Pull], hold_until_ms: MonotonicMs | None, *, is_woken: bool) -> None:
        pull = held.request
        try:
            self._check_fence(pull)
            now_ms = self._clock.monotonic_ms()
            outcome = self._read(pull, hold_until_ms, woken_at_ms=now_ms, is_woken=is_woken)
        except Exception as error:  # A pull that fails is answered so; the others and the sender go on.
            outcome = failure(error, pull.request)
        self._answer(pull.request, outcome)

    def _checked(self, request: Request, header: PullMessageHeader) -> Pull:
        if not self._readable:
            raise broker_error(ResponseCode.NO_PERMISSION, "the broker's brokerPermission forbids pulling")
        group = self._groups.require(header.consumer_group, request.wall_ms)
        if not group.consume_enable:
            raise broker_error(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.group_name}"
            )
        topic = self._topics.require(header.topic)
        if not topic.readable:
            raise broker_error(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{request.peer.address}]",
            )
        if header.sys_flag & PULL_SUBSCRIPTION:
            tag_codes = self._requested_codes(header)
        else:
            tag_codes = self._subscribed_codes(header, group.consume_broadcast_enable)
        return Pull(
            request,
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            max(1, header.max_msg_nums),
            header.max_msg_bytes,
            tag_codes,
            header.lb_member,
            header.lb_queue_epoch,
        )

    def _check_fence(self, pull: Pull) -> None:
        if pull.member is not None:
            self._fences.check(pull.group, pull.topic, pull.queue_id, pull.member, pull.epoch)

    def _may_commit(self, pull: Pull) -> bool:
        """A pull that names no member does no harm; a commit without an epoch would."""
        return pull.member is not None or self._fences.mode(pull.group) != MODE_EPOCHS

    def _requested_codes(self, header: PullMessageHeader) -> frozenset[int] | None:
        _refuse_sql92(header.expression_type)
        try:
            return parse_tag_filter(header.subscription).codes
        except ConfigError as error:
            raise broker_error(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None

    def _subscribed_codes(self, header: PullMessageHeader, may_broadcast: bool) -> frozenset[int] | None:
        group = self._clients.group(header.consumer_group)
        if group is None:
            raise broker_error(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist; send a heartbeat first",
            )
        if not may_broadcast and group.message_model == BROADCASTING:
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group.name}] can not consume by broadcast way",
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise broker_error(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {group.name}, topic {header.topic}",
            )
        _refuse_sql92(subscription.expression_type)
        # A newer version means that a heartbeat is on its way, or that the Java client dropped it because
        # another of its threads was sending one. Upstream refuses (SUBSCRIPTION_NOT_LATEST) until the next,
        # up to 30 s later. Clients check tags exactly, so giving them everything meanwhile is right.
        if subscription.sub_string == "*" or subscription.sub_version < header.sub_version:
            return None
        return frozenset(subscription.code_set)

    def _read(
        self,
        pull: Pull,
        hold_until_ms: MonotonicMs | None,
        *,
        woken_at_ms: MonotonicMs | None = None,
        is_woken: bool = False,
        may_wait: bool = False,
    ) -> Outcome:
        result = self._store.read(
            pull.topic,
            pull.queue_id,
            pull.offset,
            pull.count_max,
            pull.bytes_max,
            pull.tag_codes,
            may_wait=may_wait,
        )
        if result.status is ReadStatus.WOULD_WAIT:
            again = self._again(pull, hold_until_ms, woken_at_ms, is_woken)
            return WaitForDisk(partial(self._store.warm, result.cold), again)
        code = self._code(pull, result)
        if hold_until_ms is not None and self._held.may_hold(pull.request.peer, pull.topic, pull.queue_id):
            if code == ResponseCode.PULL_NOT_FOUND:
                return self._hold(pull, hold_until_ms)
            if woken_at_ms is not None and code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                # What came was filtered out: wait on behind it rather than answer with nothing.
                return self._hold(pull._replace(offset=result.next_offset), hold_until_ms)
        if is_woken and code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            code = ResponseCode.PULL_NOT_FOUND
        self._clients.answered(
            pull.request.peer,
            pull.group,
            MessageQueue(pull.topic, self._clients.broker_name, pull.queue_id),
            result.next_offset if result.count else None,
            now_ms=woken_at_ms if woken_at_ms is not None else pull.request.monotonic_ms,
        )
        return _reply(code, result)

    def _again(
        self, pull: Pull, hold_until_ms: MonotonicMs | None, woken_at_ms: MonotonicMs | None, is_woken: bool
    ) -> Callable[[], Outcome]:
        def again() -> Outcome:
            self._check_fence(pull)
            return self._read(pull, hold_until_ms, woken_at_ms=woken_at_ms, is_woken=is_woken, may_wait=True)

        return again

    def _code(self, pull: Pull, result: ReadResult) -> ResponseCode:
        if result.status in (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE):
            return ResponseCode.PULL_OFFSET_MOVED if pull.offset else ResponseCode.PULL_NOT_FOUND
        return _CODES[result.status]

    def _hold(self, pull: Pull, until_ms: MonotonicMs) -> Outcome:
        request = pull.request
        if not request.peer.is_open:  # It went while a thread read for it; nobody would take the pull out.
            return HOLD
        held = HeldPull(pull.topic, pull.queue_id, pull.offset, request.peer, until_ms, pull, self._expired)
        self._held.hold(held)
        return HOLD


def _refuse_sql92(expression_type: str | None) -> None:
    if expression_type == _SQL92:
        raise broker_error(
            ResponseCode.SYSTEM_ERROR, "the broker does not support consumer to filter message by SQL92"
        )


def _reply(code: ResponseCode, result: ReadResult) -> Reply:
    ext = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    body = bytes(result.data[0]) if len(result.data) == 1 else b"".join(result.data)
    return Reply(code, result.status.name, ext, body)
