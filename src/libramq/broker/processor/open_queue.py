"""OPEN_QUEUE: a member of a coordinated group begins with a queue, and fences whoever had it.

Ours; the contract is in ARCHITECTURE.md, "Coordinated groups".
"""

from collections.abc import Mapping

from libramq.broker.consumer_clients import ConsumerClients
from libramq.broker.offset_commits import OffsetCommits
from libramq.broker.reading import Pull
from libramq.catalog import TopicTable
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.offsets import Claim, Fences
from libramq.remoting.headers import OpenQueueHeader, decode_header
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.waits import HeldPulls


class OpenQueue:
    """Serves openings, which end the held pulls of former owners."""

    def __init__(
        self,
        *,
        fences: Fences,
        offsets: OffsetCommits,
        topics: TopicTable,
        held: HeldPulls[Pull],
        clients: ConsumerClients,
    ) -> None:
        self._fences = fences
        self._offsets = offsets
        self._topics = topics
        self._held = held
        self._clients = clients

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {RequestCode.OPEN_QUEUE: self.handle}

    def handle(self, request: Request) -> Outcome:
        """Open the queue, on disk before it is answered; the answer is the offset to begin at, if any."""
        header = decode_header(request.command, OpenQueueHeader)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        self._require_queue(topic, queue_id)
        claim = Claim(header.lb_member, header.lb_queue_epoch)
        try:
            former = self._fences.open(group, topic, queue_id, claim)
        except OSError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the opening cannot be journalled: {error}")
        if former is not None:
            self._clients.opened(request.peer, group, topic, queue_id)
            self._end_pulls(group, topic, queue_id, claim)
        offset = self._offsets.first_to_read(group, topic, queue_id)
        return Reply(ext=None if offset is None else {"offset": str(offset)})

    def _require_queue(self, topic: str, queue_id: int) -> None:
        queues = self._topics.require(topic).read_queue_nums
        if not 0 <= queue_id < queues:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic} cannot be opened: it has {queues} to read from",
            )

    def _end_pulls(self, group: str, topic: str, queue_id: int, owner: Claim) -> None:
        fenced = broker_error(
            ResponseCode.FENCED, f"{topic}-{queue_id} of group {group} was opened under epoch {owner.epoch}"
        )
        for held in self._held.take(topic, queue_id, lambda pull: _is_former(pull, group, owner)):
            held.request.waiter.refuse(fenced)


def _is_former(pull: Pull, group: str, owner: Claim) -> bool:
    return pull.group == group and pull.member is not None and (pull.member, pull.epoch) != owner
