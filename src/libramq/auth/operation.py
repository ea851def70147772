"""The operation, as authorization sees it: the resources (topics, groups, the cluster) and actions that a
send, a read, a membership or an administrative request needs, in any protocol.

        protocol ── Operation ──► resources(operation) ──► authorizer, once per resource

A protocol makes an operation from each request. If the topic is unknown until a message is read (a message
requested by its physical offset), the service that reads it checks a second operation.

Upstream: auth/authorization: common/resource/ResourceType.java, common/action/Action.java.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from libramq.kernel.connection import Principal
from libramq.message.names import RETRY_PREFIX

#: The name of all resources of a kind: for lists, or for a kind with a single resource.
ALL: Final = "*"


class ResourceKind(StrEnum):
    """A kind of resource."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """An action of an operation on a resource."""

    PUB = "Pub"
    SUB = "Sub"
    GET = "Get"
    LIST = "List"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"


#: Alternative actions: permission for any one of them is enough.
Actions = Collection[Action]


class Resource(NamedTuple):
    """A topic, a group or a cluster."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        """Return the resource in Apache's form: "Topic:orders"."""
        return f"{self.kind}:{self.name}"


def topic(name: str) -> Resource:
    """Return the resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


def group(name: str) -> Resource:
    """Return the resource of a producer or consumer group."""
    return Resource(ResourceKind.GROUP, name)


def cluster(name: str = ALL) -> Resource:
    """Return the resource of a cluster, by default the server's own cluster."""
    return Resource(ResourceKind.CLUSTER, name)


@dataclass(frozen=True, slots=True)
class Send:
    """An append of messages to a topic, or the end of a transaction on it.

    light: light queues that also get the messages. origins: the original topics of retried messages.
    """

    principal: Principal
    topic: str
    light: Collection[str] = ()
    origins: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Consume:
    """A group's use of topics: it joins, opens, locks, pulls, commits, or queries its progress.

    It may also send messages back, which move from their topics to its retry topic.

    topics: those that the request names; a member's polls name only those with which it joined. also: an
    alternative action, for an operator who inspects or manages members.
    """

    principal: Principal
    group: str
    topics: Collection[str] = ()
    also: Action | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """A client's joining, staying or leaving, with its consumer groups and their topics.

    Producer groups need no permission, as at Apache's broker: a producer's transactions are checked only on
    topics to which it may send (`broker/features.py`).
    """

    principal: Principal
    consumers: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manage:
    """An inspection or a change of resources. also: an alternative action."""

    principal: Principal
    action: Action
    resources: Collection[Resource]
    also: Action | None = None


@dataclass(frozen=True, slots=True)
class Locate:
    """A lookup of a topic's route, which every producer and consumer of the topic makes first."""

    principal: Principal
    topic: str


Operation = Send | Consume | Membership | Manage | Locate


def resources(operation: Operation) -> Iterator[tuple[Resource, Actions]]:
    """Yield every resource of an operation, each with its alternative actions.

    A retry topic belongs to its group: a principal that may consume as that group may write and read it
    (DefaultAuthorizationContextBuilder.java). `%RETRY%G+T` belongs to G and has messages popped from T.
    `%RETRY%G_T` counts as the topic of a group "G_T": a broker with an authorizer never uses that old form.
    """
    for resource, actions in _named(operation):
        if resource.kind is ResourceKind.TOPIC and resource.name.startswith(RETRY_PREFIX):
            owner, _, _ = resource.name.removeprefix(RETRY_PREFIX).partition("+")
            yield group(owner), _SUB if actions is _PUB else actions
        else:
            yield resource, actions


_PUB: Final[Actions] = (Action.PUB,)
_SUB: Final[Actions] = (Action.SUB,)
#: Any of these is enough to look a topic up.
LOCATING: Final[Actions] = (Action.PUB, Action.SUB, Action.GET)


def _named(operation: Operation) -> Iterator[tuple[Resource, Actions]]:
    match operation:
        case Send():
            yield topic(operation.topic), _PUB
            for name in operation.light:
                yield topic(name), _PUB
            for name in operation.origins:
                yield topic(name), _SUB
        case Consume():
            actions = _SUB if operation.also is None else (Action.SUB, operation.also)
            yield from _consumed(operation.group, operation.topics, actions)
        case Membership():
            for consumer_group, topics in operation.consumers.items():
                yield from _consumed(consumer_group, topics, _SUB)
        case Locate():
            yield topic(operation.topic), LOCATING
        case Manage():
            actions = (operation.action,) if operation.also is None else (operation.action, operation.also)
            for resource in operation.resources:
                yield resource, actions


def _consumed(
    consumer_group: str, topics: Collection[str], actions: Actions
) -> Iterator[tuple[Resource, Actions]]:
    yield group(consumer_group), actions
    for name in topics:
        yield topic(name), actions
