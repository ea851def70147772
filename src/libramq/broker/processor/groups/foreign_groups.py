"""Foreign groups (Kafka's) as RocketMQ's tools see them, and the refusal to set offsets that such members
would overwrite.

Members of a foreign group would overwrite the offsets that a tool sets by their commits. Only the group's
coordinator knows them, so any other broker asks it before it changes anything (`ForeignMembers`).
"""

from collections.abc import Callable, Iterable
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConsumerNotOnline, LibraError, broker_error, counted
from libramq.filter.subscription import CLUSTERING, CONSUME_ACTIVELY, SubscriptionData
from libramq.groups.cluster_view import ClusterView
from libramq.groups.protocol_groups import ForeignGroup
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ClientConnection, ConsumerConnection
from libramq.rpc.admin_calls import consumer_connection
from libramq.rpc.outcome import HOLD, Outcome
from libramq.rpc.question import Ask, Question
from libramq.rpc.request import Request
from libramq.rpc.responder import decide

#: The language of clients that are none of RocketMQ's; Java's tools know this one (LanguageCode).
_LANGUAGE = "OTHER"
#: Ours: a coordinator that takes longer to answer counts as absent, as in `peer_brokers.py`.
ANSWER_MS_MAX: Final = 1_000


class ForeignMembers:
    """Refuses to set offsets that foreign members would overwrite. answer: sends delayed replies."""

    def __init__(
        self,
        clients: ConsumerClients,
        view: ClusterView,
        ask: Ask,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._clients = clients
        self._view = view
        self._ask = ask
        self._answer = answer

    def unless_any(self, request: Request, group: str, then: Callable[[], Outcome]) -> Outcome:
        """Decide unless a group has foreign members, at whichever broker. Raises BrokerError."""
        foreign = self._clients.foreign.get(group)
        if foreign is not None:
            raise _refusal(group, len(foreign.members))
        coordinator, address = self._view.coordinator_of(group), self._view.coordinator_address(group)
        if address is None or coordinator == self._view.own_name or self._clients.group(group) is not None:
            return then()

        def found(members: ConsumerConnection | LibraError) -> Outcome:
            if isinstance(members, LibraError):
                if not isinstance(members, ConsumerNotOnline):
                    reason = f"the coordinator of group {group}, {coordinator}, does not answer: {members}"
                    raise broker_error(ResponseCode.SYSTEM_BUSY, reason)
            elif members.protocol is not None:
                raise _refusal(group, len(members.connection_set))
            return then()

        def answered(members: ConsumerConnection | LibraError) -> None:
            self._answer(request, decide(lambda: found(members), request))

        self._ask(Question(address, consumer_connection(group), answered, ANSWER_MS_MAX))
        return HOLD


def _refusal(group: str, count: int) -> BrokerError:
    return broker_error(
        ResponseCode.SYSTEM_ERROR,
        f"the group {group} has {counted(count, 'member')} of Kafka's protocol, which would go on where they"
        " are; stop them first",
    )


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
