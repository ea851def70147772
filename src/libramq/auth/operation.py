"""The operation, as authorisation sees it: who wants to do what to which resources, in any protocol.

        protocol ── Operation ──► resources(operation) ──► authorizer, once per resource

A protocol makes one from each request. What is unknown before a message is read (a message requested by its
physical offset) is checked by the service that reads it, with another operation.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from libramq.auth.resource import Action, Resource, ResourceKind, group, topic
from libramq.kernel.connection import Principal
from libramq.message.names import RETRY_PREFIX


@dataclass(frozen=True, slots=True)
class Send:
    """Messages are appended to a topic; or a transaction on it is ended."""

    principal: Principal
    topic: str


@dataclass(frozen=True, slots=True)
class Consume:
    """A group reads topics: it joins, opens, locks, pulls, commits, or queries its progress.

    topics: those that the request names; a member's polls name only those it joined with.
    """

    principal: Principal
    group: str
    topics: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class SendBack:
    """A group sends messages back: they move from their topics to its retry topic."""

    principal: Principal
    group: str
    topics: Collection[str]


@dataclass(frozen=True, slots=True)
class Membership:
    """A client joins, stays or leaves: with groups that consume topics, and groups that produce."""

    principal: Principal
    consumers: Mapping[str, Collection[str]] = field(default_factory=dict)
    producers: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Manage:
    """A request inspects or changes resources."""

    principal: Principal
    action: Action
    resources: Collection[Resource]


Operation = Send | Consume | SendBack | Membership | Manage


def resources(operation: Operation) -> Iterator[tuple[Resource, Action]]:
    """Yield every resource that an operation touches, with the action on it.

    A retry topic is its group's: a principal that may consume as that group may write and read it
    (DefaultAuthorizationContextBuilder.java). `%RETRY%G+T` is G's, with what G popped of T. `%RETRY%G_T` is
    taken for that of a group "G_T": a broker with an authorizer gives no other topic such a name.
    """
    for resource, action in _named(operation):
        if resource.kind is ResourceKind.TOPIC and resource.name.startswith(RETRY_PREFIX):
            of_group = Action.SUB if action is Action.PUB else action
            owner, _, _ = resource.name.removeprefix(RETRY_PREFIX).partition("+")
            yield group(owner), of_group
        else:
            yield resource, action


def _named(operation: Operation) -> Iterator[tuple[Resource, Action]]:
    match operation:
        case Send():
            yield topic(operation.topic), Action.PUB
        case Consume() | SendBack():
            yield from _consumed(operation.group, operation.topics)
        case Membership():
            for consumer_group, topics in operation.consumers.items():
                yield from _consumed(consumer_group, topics)
            for producer_group in operation.producers:
                yield group(producer_group), Action.PUB
        case Manage():
            for resource in operation.resources:
                yield resource, operation.action


def _consumed(consumer_group: str, topics: Collection[str]) -> Iterator[tuple[Resource, Action]]:
    yield group(consumer_group), Action.SUB
    for name in topics:
        yield topic(name), Action.SUB
