"""The name servers: any of them can answer; the one that did is asked again.

Upstream: NettyRemotingClient.getAndCreateNameserverChannel.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

from libramq.client.core.publish_info import as_template
from libramq.errors import BrokerError, NameServerUnavailable, RemoteError, RouteNotFound, TopicNotExist
from libramq.message.names import AUTO_CREATE_TOPIC
from libramq.remoting.body.route import TopicRouteData
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import name_server_result, topic_route
from libramq.transport.asyncio_remotes import AsyncioRemotes
from libramq.transport.timeouts import REQUEST_TIMEOUT_MS

T = TypeVar("T")


class NameServers:
    """Asks one, and the next when it does not answer."""

    def __init__(self, remotes: AsyncioRemotes, addresses: Sequence[str], randomness: random.Random) -> None:
        self._remotes = remotes
        self._addresses = list(addresses)
        randomness.shuffle(self._addresses)
        self._current = 0

    async def call(self, call: Call[T], *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> T:
        """Ask one name server after the other until one answers.

        Raises NameServerUnavailable when none answers, BrokerError when the answer is an error.
        """
        failures = []
        for _ in self._addresses:
            address = self._addresses[self._current]
            try:
                reply = await self._remotes.call(address, call.command(), timeout_ms=timeout_ms)
                return name_server_result(call, reply, address)
            except BrokerError:
                raise
            except RemoteError as error:
                failures.append(str(error))
                self._current = (self._current + 1) % len(self._addresses)
        raise NameServerUnavailable(
            f"no name server answered: {'; '.join(failures)}. Check that it runs and that the address "
            "(namesrv, NAMESRV_ADDR) is right"
        )

    async def call_each(self, call: Call[None], *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Ask every name server, since they share nothing; raises the first failure once all were asked."""
        failures: list[RemoteError] = []
        for address in self._addresses:
            try:
                reply = await self._remotes.call(address, call.command(), timeout_ms=timeout_ms)
                name_server_result(call, reply, address)
            except RemoteError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def route(self, topic: str) -> TopicRouteData:
        """Where a topic is; raises RouteNotFound."""
        try:
            return await self.call(topic_route(topic))
        except TopicNotExist:
            namesrv = self._addresses[self._current]
            raise RouteNotFound(
                f"no broker has the topic {topic}; create it "
                f"(libra admin updateTopic -n {namesrv} -c CLUSTER -t {topic}) or check its name"
            ) from None

    async def route_to_send(self, topic: str, *, queue_count: int) -> TopicRouteData:
        """Where a topic is or, where brokers create topics on the first send, where it is going to be."""
        try:
            return await self.route(topic)
        except RouteNotFound as not_found:
            try:
                template = await self.route(AUTO_CREATE_TOPIC)
            except RouteNotFound:
                raise not_found from None
            return as_template(template, queue_count)
