"""By config (CONFIG): each client has a fixed list of queues.

Upstream: AllocateMessageQueueByConfig.java (CONFIG), which uses nothing but its list.
"""

from collections.abc import Iterable, Sequence

from libramq.balance.strategy import TopicStrategy
from libramq.message.queue import MessageQueue


def by_config(queues: Iterable[tuple[str, str, int]]) -> TopicStrategy:
    """Return the strategy of a client that always consumes these queues: (topic, broker name, queue id).

    Its share is the whole list, whatever the topic, as upstream.
    """
    configured = tuple(MessageQueue(*queue) for queue in queues)

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return configured

    return TopicStrategy(rule)
