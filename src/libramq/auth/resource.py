"""The resource: what an operation acts upon, and what it does to it.

Upstream: auth/authorization: common/resource/ResourceType.java, common/action/Action.java.
"""

from enum import StrEnum
from typing import Final, NamedTuple

#: The name of all resources of a kind: of a list, or where there is one only.
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


class Resource(NamedTuple):
    """A topic, a group or a cluster."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        """Return it as Apache writes it: "Topic:orders"."""
        return f"{self.kind}:{self.name}"


def topic(name: str) -> Resource:
    """Return the resource of a topic."""
    return Resource(ResourceKind.TOPIC, name)


def group(name: str) -> Resource:
    """Return the resource of a producer or consumer group."""
    return Resource(ResourceKind.GROUP, name)


def cluster(name: str = ALL) -> Resource:
    """Return the resource of a cluster, or of whichever cluster the server belongs to."""
    return Resource(ResourceKind.CLUSTER, name)
