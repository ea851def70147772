"""POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION, POLLING_INFO: RocketMQ's pops as calls of `Popping`, and the
format of the replies.

Upstream: PopMessageProcessor.java, NotificationProcessor.java, PollingInfoProcessor.java, ExtraInfoUtil.java.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from libramq.broker.groups.pull import parse_ahead
from libramq.broker.pop.popping import Pop, Popping, PopResult
from libramq.broker.pop.taking import PopSelection, Share
from libramq.broker.processor.messages.pull_message import KEPT_CHARACTERS_MAX
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.kernel.work import Work
from libramq.message import names
from libramq.message import properties as p
from libramq.message.record import with_topic
from libramq.pop.handle import Handle, encode_handle
from libramq.remoting import headers as h
from libramq.rpc.outcome import HOLD, Outcome, Reply, ReplyWhenDurable
from libramq.rpc.request import Request, serves
from libramq.rpc.responder import RequestWaiter
from libramq.waits.held_pops import ANY_QUEUE

#: ConsumeInitMode.MAX.
FROM_END: Final = 1


class PopMessage:
    """The processor of pops. answer: sends the reply, at once or after the pop was held.

    waits_for_disk: messages are handed out once their check point is on the disk.
    """

    def __init__(
        self,
        popping: Popping,
        *,
        answer: Callable[[Request, Outcome], None],
        broker_name: str,
        waits_for_disk: bool,
    ) -> None:
        self._popping = popping
        self._answer = answer
        self._broker_name = broker_name
        self._waits_for_disk = waits_for_disk

    @serves(RequestCode.POP_MESSAGE)
    def pop(self, request: Request, *, parsed_by: int | None = None) -> Outcome:
        """Answer a pop, or hold it. parsed_by: the version of users at the arrival of a long expression."""
        header: h.PopMessageHeader = request.header
        is_long = header.exp is not None and len(header.exp) > KEPT_CHARACTERS_MAX
        if is_long and parsed_by is None:
            return self._pop_parsed(request)
        wanted = _selection(
            header,
            header.max_msg_nums,
            from_end=header.init_mode == FROM_END,
            in_order=bool(header.order),
            attempt_id=header.attempt_id,
        )
        wide_max = header.lb_max_msg_nums or 0
        reply = partial(
            self._reply, request.monotonic_ms, header.topic, header.invisible_time, is_wide=wide_max > 0
        )
        pop = Pop(
            waiter=RequestWaiter(request, self._answer, reply),
            wanted=wanted,
            invisible_ms=header.invisible_time,
            remaining_ms=_remaining_ms(request, header.born_time, header.poll_time),
            wide_max=wide_max,
            expression=header.exp,
            expression_type=header.exp_type,
            users_version=parsed_by,
        )
        self._popping.pop(pop, wall_ms=request.wall_ms, now_ms=request.monotonic_ms)
        return HOLD

    def _pop_parsed(self, request: Request) -> Work[Outcome]:
        users_version = self._popping.users_version
        yield from parse_ahead(request.header.exp or "", request.header.exp_type)
        return self.pop(request, parsed_by=users_version)

    @serves(RequestCode.NOTIFICATION)
    def notify(self, request: Request) -> Outcome:
        """Answer once a group has a message to pop, or at the end of the wait."""
        header: h.NotificationHeader = request.header
        wanted = _selection(header, 1, in_order=bool(header.order))
        remaining_ms = _remaining_ms(request, header.born_time, header.poll_time)
        waiter = RequestWaiter(request, self._answer, _notification)
        pop = Pop(waiter=waiter, wanted=wanted, remaining_ms=remaining_ms, is_notification=True)
        self._popping.pop(pop, wall_ms=request.wall_ms, now_ms=request.monotonic_ms)
        return HOLD

    @serves(RequestCode.POLLING_INFO)
    def count_waiting(self, request: Request) -> Outcome:
        """Return how many pops of a group wait for a queue."""
        header: h.GroupQueueHeader = request.header
        wanted = _selection(header, 1)
        self._popping.check(wanted, request.wall_ms)
        count = self._popping.waiting(wanted.topic, wanted.group, wanted.queue_id)
        return Reply(ext={"pollingNum": str(count)})

    @serves(RequestCode.PEEK_MESSAGE)
    def peek(self, request: Request) -> Work[Outcome]:
        """Return the next messages of a group, which stay visible."""
        header: h.PeekMessageHeader = request.header
        wanted = _selection(header, header.max_msg_nums)
        self._popping.check(wanted, request.wall_ms)
        taken = yield from self._popping.peek(wanted)
        result = PopResult(
            int(request.wall_ms), 0, [each for each in taken.shares if each.offsets], taken.rest
        )
        if not result.shares:
            return Reply(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", {"restNum": str(taken.rest)})
        return self._found(wanted.topic, 0, result)

    def _reply(
        self, read_ms: MonotonicMs, topic: str, invisible_ms: int, result: PopResult, *, is_wide: bool
    ) -> Outcome:
        if not result.shares:
            code = ResponseCode.POLLING_FULL if result.full else ResponseCode.POLLING_TIMEOUT
            numbers = _numbers(invisible_ms, result)
            if is_wide:
                numbers[h.MESSAGE_COUNTS] = ""
            return Reply(code, result.full or "NO_MESSAGE_IN_QUEUE", numbers)
        reply = self._found(topic, invisible_ms, result, is_wide=is_wide)
        assert reply.ext is not None
        reply.ext[h.HELD_MS] = str(result.popped_ms - read_ms)
        return ReplyWhenDurable(result.end, reply) if self._waits_for_disk else reply

    def _found(self, topic: str, invisible_ms: int, result: PopResult, *, is_wide: bool = False) -> Reply:
        """Return the reply with messages. is_wide: with the message counts of each check point, in order.

        Apache's reply instead has the first offset and all offsets of each queue.
        """
        ext = _numbers(invisible_ms, result)
        starts, offsets, counts = [], [], []
        body: list[bytes | memoryview] = []
        for share in result.shares:
            kind = names.pop_kind(share.topic)
            if is_wide:
                for start, in_it in share.parts():
                    starts.append(f"{kind} {share.queue_id} {start}")
                    counts.append(str(len(in_it)))
            else:
                starts.append(f"{kind} {share.queue_id} {share.start}")
                offsets.append(f"{kind} {share.queue_id} {','.join(map(str, share.offsets))}")
            body += self._as_of(topic, share, result, invisible_ms) if share.is_retry else share.records
        ext["startOffsetInfo"] = ";".join(starts)
        if is_wide:
            ext[h.MESSAGE_COUNTS] = ";".join(counts)
        else:
            ext["msgOffsetInfo"] = ";".join(offsets)
        if result.ordered:
            ext["orderCountInfo"] = ";".join(_counts(result))
        return Reply(ResponseCode.SUCCESS, "FOUND", ext, pieces=tuple(body))

    def _as_of(self, topic: str, share: Share, result: PopResult, invisible_ms: int) -> list[bytes]:
        """Return a retry topic's records under the topic requested by the consumer, with their handles."""
        kind = names.pop_kind(share.topic)
        records = []
        data, at = b"".join(share.records), 0
        for start, offset in [(start, offset) for start, in_it in share.parts() for offset in in_it]:
            size = int.from_bytes(data[at : at + 4])
            handle = Handle(
                start,
                result.pop_time_ms,
                invisible_ms,
                result.revive_queue,
                kind,
                self._broker_name,
                share.queue_id,
                offset,
            )
            records.append(with_topic(data[at : at + size], topic, {p.POP_CK: encode_handle(handle)}))
            at += size
        return records


def _selection(header: h.GroupQueueHeader, count_max: int, **others: Any) -> PopSelection:
    return PopSelection(
        group=header.consumer_group,
        topic=header.topic,
        queue_id=max(header.queue_id, ANY_QUEUE),
        count_max=count_max,
        **others,
    )


def _remaining_ms(request: Request, born_ms: int, poll_ms: int) -> int:
    """Return how long a client still waits; its clock may differ from ours."""
    if born_ms <= 0:
        return max(poll_ms, 0)
    return min(born_ms + poll_ms - int(request.wall_ms), poll_ms)


def _numbers(invisible_ms: int, result: PopResult) -> dict[str, str]:
    return {
        "popTime": str(result.pop_time_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(result.revive_queue),
        "restNum": str(result.rest),
    }


def _counts(result: PopResult) -> Iterator[str]:
    """Yield how often messages were popped before: of each, and for old clients the least of a queue."""
    for share, pop in zip(result.shares, result.ordered, strict=True):
        kind = names.pop_kind(share.topic)
        for offset, count in pop.counts.items():
            yield f"{kind} qo{share.queue_id}%{offset} {count}"
        least = min(pop.counts.values()) if len(pop.counts) == len(share.offsets) else 0
        yield f"{kind} {share.queue_id} {least}"


def _notification(result: PopResult) -> Reply:
    ext = {"hasMsg": "true" if result.rest else "false"}
    ext["pollingFull"] = "true" if result.full else "false"
    return Reply(ext=ext)
