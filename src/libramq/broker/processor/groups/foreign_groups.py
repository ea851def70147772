"""Foreign groups in the form of RocketMQ's bodies, so that its tools show them like any other group."""

from collections.abc import Iterable

from libramq.filter.subscription import CLUSTERING, CONSUME_ACTIVELY, SubscriptionData
from libramq.groups.foreign import ForeignGroup
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ClientConnection, ConsumerConnection

#: The language of clients that are none of RocketMQ's; Java's tools know this one (LanguageCode).
_LANGUAGE = "OTHER"


def foreign_connections(group: ForeignGroup) -> ConsumerConnection:
    """Return the members of a group."""
    return ConsumerConnection(
        connection_set=[
            ClientConnection(
                client_id=member.member_id,
                client_addr=member.address,
                language=_LANGUAGE,
                version=0,
                instance=member.instance,
                queues=_by_topic(member.queues),
            )
            for member in group.members
        ],
        subscription_table={topic: SubscriptionData(topic=topic, sub_string="*") for topic in group.topics},
        consume_type=CONSUME_ACTIVELY,
        message_model=CLUSTERING,
        protocol=group.protocol,
        generation=group.generation,
        strategy=group.strategy,
    )


def _by_topic(queues: Iterable[MessageQueue]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
    return found
