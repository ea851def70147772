"""Server-assigned queues: how a stock member gets its queues under Java's setClientRebalance(false).

Instead of fetching the member list and allocating, it asks for its queues of each topic (QUERY_ASSIGNMENT).
Upstream: RebalanceImpl.getRebalanceResultFromBroker.
"""

from collections.abc import Callable, Sequence
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.requests.ask import Ask
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode
from libramq.errors import LibraError
from libramq.formats.document import decode_body, encode_body
from libramq.message.queue import MessageQueue
from libramq.remoting.body.assignment import QueryAssignmentBody, QueryAssignmentReply
from libramq.rpc.call import Call
from libramq.transport.timeouts import REQUEST_TIMEOUT_MS

#: AllocateMessageQueueAveragely.getName: the default of DefaultMQPushConsumer.
STRATEGY: Final = "AVG"


#: `PushConsumerCore.consumer_list_fetched`.
ListFetched = Callable[[str, Sequence[str], Sequence[str] | None, MonotonicMs], Sequence[fx.Effect]]


class ServerAssignedQueues:
    """The assignment of one member, by topic."""

    def __init__(self, group: str, client_id: str, ask: Ask) -> None:
        self._group = group
        self._client_id = client_id
        self._ask = ask
        self._assigned: dict[str, set[MessageQueue]] = {}

    def strategy(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Return our assigned queues; a `balance.TopicRule`."""
        return [queue for queue in queues if queue in self._assigned.get(queue.topic, ())]

    def fetch(self, effect: fx.FetchConsumerList, fetched: ListFetched) -> None:
        """Query the queues of each topic; a topic without an answer stays as it is, and is retried soon."""
        waiting, fetched_topics = set(effect.topics), []

        def answered(
            topic: str, outcome: QueryAssignmentReply | LibraError, now_ms: MonotonicMs
        ) -> Sequence[fx.Effect]:
            waiting.discard(topic)
            assigned = None if isinstance(outcome, LibraError) else outcome.message_queue_assignments
            if assigned is not None:
                self._assigned[topic] = {each.message_queue.queue for each in assigned}
                fetched_topics.append(topic)
            if waiting:
                return ()
            # Other members may have had them: take over as one of several.
            members = (self._client_id, "others")
            found = fetched(effect.address, fetched_topics, members, now_ms)
            if len(fetched_topics) < len(effect.topics):
                found = [*found, *fetched(effect.address, effect.topics, None, now_ms)]
            return found

        for topic in effect.topics:
            self._ask(
                effect.address,
                self._call(topic),
                lambda outcome, now_ms, topic=topic: answered(topic, outcome, now_ms),  # type: ignore[misc]
                REQUEST_TIMEOUT_MS,
            )

    def _call(self, topic: str) -> Call[QueryAssignmentReply]:
        body = QueryAssignmentBody(
            topic=topic, consumer_group=self._group, client_id=self._client_id, strategy_name=STRATEGY
        )
        return Call(
            RequestCode.QUERY_ASSIGNMENT,
            lambda reply: decode_body(reply.body, QueryAssignmentReply),
            body=encode_body(body),
        )
