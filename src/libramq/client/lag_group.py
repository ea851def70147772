"""The lag group: a group without members, whose commits show tools the positions of another reader, such as
Spark.

Tools, Apache's and ours, find a group by its retry topic, which brokers create at its first heartbeat. So the
group is announced by one heartbeat and unregistered; after that, offsets are committed one-way.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from libramq.client.blocking_cluster import BlockingCluster
from libramq.client.identity import local_address, new_client_id
from libramq.clock import Clock, SystemClock
from libramq.errors import BrokerError, ConfigError, counted
from libramq.message.queue import MessageQueue
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData
from libramq.rpc.broker_calls import consumer_list, heartbeat, unregister_client, update_consumer_offset
from libramq.rpc.call import Call

T = TypeVar("T")


class LagGroup:
    """The offsets of a group without consumers."""

    def __init__(self, cluster: BlockingCluster, group: str, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._group = group
        self._clock = clock or SystemClock()

    def introduce(self, queues: Iterable[MessageQueue]) -> None:
        """Announce the group to the brokers of queues; raises ConfigError if it has members; RemoteError."""
        for queue in {queue.broker_name: queue for queue in queues}.values():
            with contextlib.suppress(BrokerError):  # It has no members.
                members = self._ask(queue, consumer_list(self._group))
                if members:
                    raise ConfigError(
                        f"the group {self._group} has {counted(len(members), 'member')}, whose positions "
                        "would be overwritten; use another group"
                    )
            address = self._cluster.broker(queue).address
            client_id = new_client_id(local_address(address), self._clock)
            consumer = ConsumerData(group_name=self._group)
            self._ask(queue, heartbeat(HeartbeatData(client_id=client_id, consumer_data_set=[consumer])))
            self._ask(queue, unregister_client(client_id, producer_group=None, consumer_group=self._group))

    def commit(self, positions: Mapping[MessageQueue, int]) -> None:
        """Commit offsets, without confirmation."""
        for queue, offset in positions.items():
            call = update_consumer_offset(self._group, queue, offset, oneway=True, is_mirrored=True)
            self._cluster.broker(queue).send_oneway(call.command())

    def _ask(self, queue: MessageQueue, call: Call[T]) -> T:
        remote = self._cluster.broker(queue)
        return self._cluster.finish(remote, call, self._cluster.start(remote, call))
