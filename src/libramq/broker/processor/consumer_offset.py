"""QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET: how far a group is.

Upstream: ConsumerManageProcessor.java.
"""

from collections.abc import Callable, Mapping, Sequence

from libramq.broker.offset_commits import OffsetCommits
from libramq.catalog import GroupTable, TopicTable
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.offsets import Fences
from libramq.remoting.headers import (
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
    decode_header,
)
from libramq.rpc.endpoint import BatchProcessor, Processor
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import Request, failure
from libramq.transport.server import Peer


class ConsumerOffsetRequests:
    """The processor of committed offsets. committed: hears who commits for which group."""

    def __init__(
        self,
        *,
        offsets: OffsetCommits,
        fences: Fences,
        topics: TopicTable,
        groups: GroupTable,
        committed: Callable[[Peer, str], None],
    ) -> None:
        self._offsets = offsets
        self._fences = fences
        self._topics = topics
        self._groups = groups
        self._committed = committed

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
        }

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the requests that it serves, all that one read brought at once."""
        return {RequestCode.UPDATE_CONSUMER_OFFSET: self.update_many}

    def query(self, request: Request) -> Outcome:
        """The committed offset, or where else to begin; a client may ask not to be told 0."""
        header = decode_header(request.command, QueryConsumerOffsetHeader)
        offset = self._offsets.first_to_read(
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
        """Commit offsets; they are in the journal, all by one write, before the answers go out."""
        outcomes: list[Outcome] = []
        for request in requests:
            try:
                self._take_in(request)
                outcomes.append(SUCCESS)
            except Exception as error:  # One request that cannot be read harms none of its neighbours.
                outcomes.append(failure(error, request))
        try:
            self._offsets.write()
        except OSError as error:
            refusal = Reply(ResponseCode.SYSTEM_ERROR, f"the offset cannot be journalled: {error}")
            return [refusal if outcome is SUCCESS else outcome for outcome in outcomes]
        return outcomes

    def _take_in(self, request: Request) -> None:
        header = decode_header(request.command, UpdateConsumerOffsetHeader)
        if header.consumer_group not in self._groups:
            raise broker_error(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!"
            )
        topic = self._topics.require(header.topic)
        if not 0 <= header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        group, queue_id = header.consumer_group, header.queue_id
        self._fences.check(group, header.topic, queue_id, header.lb_member, header.lb_queue_epoch)
        self._offsets.commit(group, header.topic, queue_id, header.commit_offset)
        self._committed(request.peer, group)
