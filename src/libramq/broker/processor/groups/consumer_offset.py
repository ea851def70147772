"""QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET: a group's committed offsets; and whose commits to a
coordinated group are accepted without an epoch (mqadmin's).

Apache's mqadmin sets a single queue (`resetOffsetByTime -b … -q …`) by a commit like a consumer's, and then
resets it to the same offset. In a coordinated group, a commit without an epoch is refused, because it may be
late. Unlike Java's consumers, which do not wait for the commits they send while leaving, mqadmin is no member
of any group and waits for the answer; so its commit is recognised as an operator's. It is recorded as by
Apache's broker: the next commit of the queue's reader replaces it, and only the reset moves that reader.
Upstream: ConsumerManageProcessor.java, DefaultMQAdminExtImpl.resetOffsetByQueueId.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from libramq.broker.groups.offset_commits import Committing
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import BrokerError, Fenced
from libramq.kernel.connection import Connection
from libramq.remoting.headers import (
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import BatchProcessor, Request, failure, serves

#: LanguageCode.java.
JAVA: Final = "JAVA"


class ConsumerOffsetRequests:
    """The processor of committed offsets. is_member: returns whether a connection is in any group."""

    def __init__(self, committing: Committing, *, is_member: Callable[[Connection], bool]) -> None:
        self._committing = committing
        self._is_member = is_member

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the requests that are served in batches, all of one read together."""
        return {RequestCode.UPDATE_CONSUMER_OFFSET: self.update_many}

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, request: Request) -> Outcome:
        """Return the committed offset, or another starting offset; a client may decline 0."""
        header: QueryConsumerOffsetHeader = request.header
        self._committing.offsets.note_reset_sent(
            header.consumer_group, header.topic, header.queue_id, request.peer.number
        )
        offset = self._committing.offsets.first_to_read(
            header.consumer_group,
            header.topic,
            header.queue_id,
            may_be_zero=header.set_zero_if_not_found is not False,
        )
        if offset is not None:
            return Reply(ext={"offset": str(offset)})
        return Reply(
            ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        )

    def update_many(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Commit offsets; all are journalled by one write before the replies are sent."""
        outcomes: list[Outcome] = []
        for request in requests:
            try:
                outcomes.append(self._take_in(request))
            except Exception as error:  # A malformed request does not affect its neighbours.
                outcomes.append(failure(error, request))
        try:
            self._committing.write()
        except BrokerError as error:
            refusal = Reply(error.response_code, error.remark)
            return [refusal if outcome is SUCCESS else outcome for outcome in outcomes]
        return outcomes

    def _take_in(self, request: Request) -> Outcome:
        header: UpdateConsumerOffsetHeader = request.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        has_reset = self._committing.offsets.pending_reset(group, topic, queue_id) is not None
        try:
            self._committing.commit(
                request.peer,
                group,
                topic,
                queue_id,
                header.commit_offset,
                member=header.lb_member,
                epoch=header.lb_queue_epoch,
                is_returned=bool(header.lb_returned),
                ends_reset=has_reset and (bool(header.lb_mirrored) or self._is_of_mqadmin(request)),
            )
        except Fenced:
            if header.lb_member is not None or not self._is_of_mqadmin(request):
                raise
            self._committing.record(group, topic, queue_id, header.commit_offset)
        return SUCCESS

    def _is_of_mqadmin(self, request: Request) -> bool:
        command = request.command
        return command.language == JAVA and not command.is_oneway and not self._is_member(request.peer)
