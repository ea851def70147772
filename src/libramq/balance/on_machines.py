"""On machines: only clients at given addresses consume, to try a new version on one machine of many.

    client id = address@instance[@unit]

While none of the machines is connected no client consumes: messages wait.
Upstream has no such class; its users rewrite AllocateMessageQueueAveragely for it.
"""

from collections.abc import Iterable, Sequence

from libramq.balance.averagely import averagely
from libramq.balance.strategy import TopicRule, TopicStrategy
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue


def on_machines(addresses: Iterable[str], inner: TopicRule = averagely) -> TopicStrategy:
    """Return the strategy that applies another one to the clients at these addresses."""
    chosen = frozenset(addresses)
    if not chosen:
        raise ConfigError("ON_MACHINES needs at least one address")

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        there = on_them(client_ids)
        return inner(client_id, queues, there) if client_id in there else ()

    def deal(queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> dict[str, Sequence[MessageQueue]]:
        there = on_them(client_ids)
        return {client_id: inner(client_id, queues, there) for client_id in there}

    def on_them(client_ids: Sequence[str]) -> list[str]:
        return [each for each in client_ids if address_of(each) in chosen]

    return TopicStrategy(rule, deal)


def address_of(client_id: str) -> str:
    """Return the address that a client id begins with (ClientConfig.buildMQClientId)."""
    return client_id.partition("@")[0]
