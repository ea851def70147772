"""The lag mirror: a stream's positions, committed as the offsets of a group without members for tools that
show lag.

Apache's tools and ours find a group by its retry topic, which brokers create at the group's first heartbeat.
The mirror therefore sends one heartbeat and unregisters; after that it commits offsets one-way. They are
never read back: only Spark's checkpoint holds a query's position.
"""

import contextlib
import logging
from collections.abc import Iterable
from typing import TypeVar

from libramq.client.blocking_cluster import BlockingCluster
from libramq.client.identity import local_address, new_client_id
from libramq.clock import SystemClock
from libramq.errors import BrokerError, ConfigError, RemoteError, counted
from libramq.message.queue import MessageQueue
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData
from libramq.rpc.broker_calls import consumer_list, heartbeat, unregister_client, update_consumer_offset
from libramq.rpc.call import Call
from libramq.spark.reading.positions import Positions

log = logging.getLogger(__name__)
T = TypeVar("T")


class LagMirror:
    """Commits changed positions.

    Commits when Spark asks for the next batch, that is when all previous batches are done. So a run's last
    batch is included, while Spark calls its own `commit` one batch late and never for the last batch.
    """

    def __init__(self, cluster: BlockingCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._committed: dict[MessageQueue, int] = {}

    def show(self, positions: Positions) -> None:
        """Commit positions. Raises ConfigError for a group that has members; other failures are logged."""
        changed = {
            queue: offset for queue, offset in positions.items() if self._committed.get(queue) != offset
        }
        try:
            self._introduce(sorted(changed.keys() - self._committed.keys()))
            for queue, offset in changed.items():
                call = update_consumer_offset(self._group, queue, offset, oneway=True, is_mirrored=True)
                self._cluster.broker(queue).send_oneway(call.command())
        except RemoteError as error:
            log.warning("positions were not committed: %s", error)
        # No retry: the next batch brings the next positions.
        self._committed |= changed

    def _introduce(self, queues: Iterable[MessageQueue]) -> None:
        """Announce the group to the brokers of queues."""
        for queue in {queue.broker_name: queue for queue in queues}.values():
            with contextlib.suppress(BrokerError):  # The group has no members.
                if member_count := len(self._ask(queue, consumer_list(self._group))):
                    raise ConfigError(
                        f"commitGroupId: the group {self._group} has {counted(member_count, 'member')}, "
                        "whose positions would be overwritten; use another group"
                    )
            address = self._cluster.broker(queue).address
            client_id = new_client_id(local_address(address), SystemClock())
            consumer = ConsumerData(group_name=self._group)
            self._ask(queue, heartbeat(HeartbeatData(client_id=client_id, consumer_data_set=[consumer])))
            self._ask(queue, unregister_client(client_id, producer_group=None, consumer_group=self._group))

    def _ask(self, queue: MessageQueue, call: Call[T]) -> T:
        remote = self._cluster.broker(queue)
        return self._cluster.finish(remote, call, self._cluster.start(remote, call))
