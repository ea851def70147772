"""The operation, as authorisation sees it: which resources (topics, groups, the cluster) and actions a
send, a read, a membership or an administrative request needs, in any protocol.

        protocol ── Operation ──► resources(operation) ──► authorizer, once per resource

A protocol makes one from each request. What is unknown before a message is read (a message requested by its
physical offset) is checked by the service that reads it, with another operation.

Upstream: auth/authorization: common/resource/ResourceType.java, common/action/Action.java.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from libramq.kernel.connection import Principal
from libramq.message.names import RETRY_PREFIX

#: The name of all resources of a kind: for lists, or if there is only one.
ALL: Final = "*"


class ResourceKind(StrEnum):
    """A kind of resource."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """An action: what an operation does to a resource."""

    PUB = "Pub"
    SUB = "Sub"
    GET = "Get"
    LIST = "List"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"


#: Actions any of which is enough for an operation.
Actions = Collection[Action]


class Resource(NamedTuple):
    """A topic, a group or a cluster."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        """Return it in Apache's form: "Topic:orders"."""
        return f"{self.kind}:{self.name}"


def topic(name: str) -> Resource:
    """Return the resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


def group(name: str) -> Resource:
    """Return the resource of a producer or consumer group."""
    return Resource(ResourceKind.GROUP, name)


def cluster(name: str = ALL) -> Resource:
    """Return the resource of a cluster, by default the server's own."""
    return Resource(ResourceKind.CLUSTER, name)


@dataclass(frozen=True, slots=True)
class Send:
    """Messages are appended to a topic; or a transaction on it is ended.

    light: the light queues that get them, too. origins: the topics that they came from, if they are retries.
    """

    principal: Principal
    topic: str
    light: Collection[str] = ()
    origins: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Consume:
    """A group reads topics: it joins, opens, locks, pulls, commits, or queries its progress.

    Or it sends messages back, which move from their topics to its retry topic.

    topics: those that the request names; a member's polls name only those it joined with. also: an action
    that is enough, too, for an operator who inspects or changes what members do.
    """

    principal: Principal
    group: str
    topics: Collection[str] = ()
    also: Action | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """A client joins, stays or leaves, with groups that consume topics.

    Groups that produce need no permission, as at Apache's broker: a producer is asked only about transactions
    on topics that it may send to (`broker/features.py`).
    """

    principal: Principal
    consumers: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manage:
    """A request inspects or changes resources. also: an action that is enough, too."""

    principal: Principal
    action: Action
    resources: Collection[Resource]
    also: Action | None = None


@dataclass(frozen=True, slots=True)
class Locate:
    """A client looks up where a topic's queues are, as all who send to it or read it must first."""

    principal: Principal
    topic: str


Operation = Send | Consume | Membership | Manage | Locate


def resources(operation: Operation) -> Iterator[tuple[Resource, Actions]]:
    """Yield every resource that an operation touches, with the actions any of which is enough.

    A retry topic is its group's: a principal that may consume as that group may write and read it
    (DefaultAuthorizationContextBuilder.java). `%RETRY%G+T` is G's, with what G popped of T. `%RETRY%G_T` is
    taken for that of a group "G_T": a broker with an authorizer gives no other topic such a name.
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
