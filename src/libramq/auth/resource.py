"""The resource: the topics, groups and clusters that operations act upon, and the actions that policies name.

Upstream: auth/authorization: common/resource/ResourceType.java, common/action/Action.java.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final, NamedTuple

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
