"""The blocking admin: the asyncio one on a thread of its own."""

from typing import Unpack

from libramq.admin import admin as asynchronous_admin
from libramq.client.blocking_client import BlockingClient
from libramq.client.options import AdminOptions, TopicOptions
from libramq.formats.route import TopicRouteData
from libramq.message.queue import MessageQueue
from libramq.remoting.body.administration import ConsumeDirectlyResult
from libramq.remoting.body.consumers import ConsumerConnection, OffsetWrapper, TopicOffset
from libramq.remoting.body.route import ClusterInfo
from libramq.remoting.body.running_info import ConsumerRunningInfo


class Admin(BlockingClient):
    """Queries and changes topics and groups; see libramq.client.Admin."""

    def __init__(self, **options: Unpack[AdminOptions]) -> None:
        super().__init__("admin")
        self._admin = asynchronous_admin.Admin(**options)

    async def _start(self) -> None:
        await self._admin.start()

    async def _stop(self) -> None:
        await self._admin.stop()

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return self._wait("topics", self._admin.topics())

    def cluster_info(self) -> ClusterInfo:
        """Return all clusters and their brokers."""
        return self._wait("cluster_info", self._admin.cluster_info())

    def topic_route(self, topic: str) -> TopicRouteData:
        """Return a topic's route."""
        return self._wait("topic_route", self._admin.topic_route(topic))

    def create_topic(self, topic: str, **options: Unpack[TopicOptions]) -> list[str]:
        """Create a topic at every master of a cluster, or change it."""
        return self._wait("create_topic", self._admin.create_topic(topic, **options))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic at every master of a cluster, and its route."""
        self._wait("delete_topic", self._admin.delete_topic(topic, cluster=cluster))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the first and last offsets of a topic's queues."""
        return self._wait("topic_stats", self._admin.topic_stats(topic))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return a group's progress, queue by queue."""
        return self._wait("consume_stats", self._admin.consume_stats(group, topic))

    def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int = -1, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Set a group's offsets in a topic to a time (-1: the end); return where it continues."""
        return self._wait("reset_offsets", self._admin.reset_offsets(group, topic, timestamp_ms, force=force))

    def reset_queue(
        self, group: str, queue: MessageQueue, offset: int | None = None, *, timestamp_ms: int = -1
    ) -> int:
        """Move a group in one queue to an offset, else to a time (-1: the end)."""
        return self._wait(
            "reset_queue", self._admin.reset_queue(group, queue, offset, timestamp_ms=timestamp_ms)
        )

    def delete_group(self, group: str, *, cluster: str | None = None, offsets: bool = False) -> list[str]:
        """Delete a consumer group at every master of a cluster; offsets: and how far it was."""
        return self._wait("delete_group", self._admin.delete_group(group, cluster=cluster, offsets=offsets))

    def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return the connected members of a group."""
        return self._wait("consumer_connection", self._admin.consumer_connection(group))

    def running_info(self, group: str, client_id: str, *, threads: bool = False) -> ConsumerRunningInfo:
        """Return a member's running info: its settings, subscriptions and queues."""
        return self._wait("running_info", self._admin.running_info(group, client_id, threads=threads))

    def consume_directly(self, group: str, client_id: str, message_id: str) -> ConsumeDirectlyResult:
        """Have a member process one message again, by its offset id."""
        return self._wait("consume_directly", self._admin.consume_directly(group, client_id, message_id))

    def remove_member(self, group: str, name: str, *, operator: str | None = None) -> None:
        """Remove a member from a coordinated group: a static one by its name, or any by its client id."""
        self._wait("remove_member", self._admin.remove_member(group, name, operator=operator))
