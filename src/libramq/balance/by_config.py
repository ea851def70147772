"""By config: each client is told its queues.

Upstream: AllocateMessageQueueByConfig.java (CONFIG), which looks at nothing but its list.
"""

from collections.abc import Iterable, Sequence

from libramq.balance.strategy import TopicStrategy
from libramq.message.queue import MessageQueue


def by_config(queues: Iterable[tuple[str, str, int]]) -> TopicStrategy:
    """The strategy of a client that always consumes these queues: (topic, broker name, queue id) each.

    Its share is the whole list, whatever topic it is asked for, as upstream.
    """
    configured = tuple(MessageQueue(*queue) for queue in queues)

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return configured

    return TopicStrategy(rule)
