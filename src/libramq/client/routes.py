"""The routes of a client: fetched when first needed, fetched again now and then.

Upstream: MQClientInstance.updateTopicRouteInfoFromNameServer.
"""

import asyncio
from functools import partial

from libramq.client.awaiting import answer_of
from libramq.client.core.publish_info import TopicPublishInfo
from libramq.client.core.route_table import RouteTable
from libramq.client.name_servers import NameServers
from libramq.errors import LibraError, RouteNotFound
from libramq.logs import get_logger
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)


class Routes:
    """A producer's routes. Topics asked for at the same time are fetched once."""

    def __init__(self, name_servers: NameServers, *, default_queue_count: int) -> None:
        self.table = RouteTable()
        self._name_servers = name_servers
        self._default_queue_count = default_queue_count
        self._fetching: dict[str, asyncio.Task[None]] = {}

    async def publish_info(self, topic: str) -> TopicPublishInfo:
        """Where a topic can be sent to; raises NameServerUnavailable or RouteNotFound."""
        info = self.table.publish_info(topic)
        if info is None or not info.queues:
            await self.fetch(topic)
            info = self.table.publish_info(topic)
        if info is None or not info.queues:
            raise not_writable(topic)
        return info

    async def fetch(self, topic: str) -> None:
        """Ask a name server, unless somebody is asking already."""
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
        await asyncio.shield(task)

    async def refresh(self) -> None:
        """Ask again about every topic used; a topic that cannot be had keeps its old route."""
        for topic in self.table.topics():
            try:
                await self.fetch(topic)
            except RouteNotFound:
                log.debug("a topic has no route any more", topic=topic)
            except LibraError as error:
                log_failed_request(log, "route not refreshed", error, topic=topic)

    async def close(self) -> None:
        """Stop asking."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, topic: str) -> None:
        if self.table.publish_info(topic) is not None:
            # The template is for topics that were never there: a name server may forget for a moment.
            route = await answer_of(partial(self._name_servers.route, topic))
        else:
            route = await answer_of(
                partial(self._name_servers.route_to_send, topic, queue_count=self._default_queue_count)
            )
        if self.table.update(topic, route):
            log.debug("route changed", topic=topic)


def not_writable(topic: str) -> RouteNotFound:
    """The topic is there, but no queue of it takes messages."""
    return RouteNotFound(
        f"no queue of topic {topic} can be written to now; check its permission and its brokers "
        f"(libra admin topicRoute -t {topic})"
    )
