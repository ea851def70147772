"""LOCK_BATCH_MQ, UNLOCK_BATCH_MQ: who may lock a queue to consume it in order, and how many queues a request
may name.

Upstream: AdminBrokerProcessor.java, RebalanceLockManager.java.
"""

from typing import Final

from libramq.broker.files.tables import Tables
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.heartbeats import require_client_id
from libramq.codes import RequestCode, ResponseCode
from libramq.groups.consumer_group import ConsumerGroup
from libramq.groups.queue_lock import QueueLocks
from libramq.kernel.connection import Connection, host_of
from libramq.kernel.work import Work, portions
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import LockBatchBody, LockBatchReply, QueueRef
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, reply_rows
from libramq.rpc.request import Request, serves

#: Ours: a client's queues at one broker, over all its topics; each takes 2 µs.
QUEUES_MAX: Final = 4_096


class QueueLockRequests:
    """The processor of queue locks."""

    def __init__(self, locks: QueueLocks, clients: ConsumerClients, tables: Tables) -> None:
        self._locks = locks
        self._clients = clients
        self._topics, self._groups = tables.topics, tables.groups

    @serves(RequestCode.LOCK_BATCH_MQ)
    def lock(self, request: Request) -> Work[Outcome]:
        """Lock queues, some at a time; the reply names those that the client holds.

        Each queue is locked by itself, so other clients may lock some in between.
        """
        body: LockBatchBody = request.body
        require_client_id(body.client_id)
        if len(body.mq_set) > QUEUES_MAX:
            return _too_many(body)
        held: dict[MessageQueue, None] = {}
        for refs in portions(body.mq_set):
            yield None
            # Locks of missing groups, queues and clients would only accumulate. Live members of a deleted
            # group will create it again.
            name = body.consumer_group
            exists = name in self._groups or self._clients.group(name) is not None
            if not exists or not request.peer.is_open:
                break
            queues = dict.fromkeys(ref.queue for ref in refs if self._exists(ref))
            held |= dict.fromkeys(
                self._locks.lock(body.consumer_group, body.client_id, queues, now_ms=request.monotonic_ms)
            )
        if held:
            self._clients.locked(request.peer, body.consumer_group, body.client_id)
        return reply_rows(
            lambda: LockBatchReply(lock_ok_mq_set=[QueueRef.of(queue) for queue in held]), len(held)
        )

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, request: Request) -> Outcome:
        """Unlock queues, only for the client that holds them and over its own connection.

        A client that uses the VIP port has another connection there, from the same machine. After our
        restart, a client may hold locks before its first heartbeat.
        """
        body: LockBatchBody = request.body
        if len(body.mq_set) > QUEUES_MAX:
            return _too_many(body)
        group = self._clients.group(body.consumer_group)
        is_known = group is not None and group.has_client(body.client_id)
        if group is None or not is_known or self._is_own(group, request, body.client_id):
            self._locks.unlock(body.consumer_group, body.client_id, [ref.queue for ref in body.mq_set])
        return SUCCESS

    def _is_own(self, group: ConsumerGroup[Connection], request: Request, client_id: str) -> bool:
        if group.member_of(request.peer, client_id) is not None:
            return True
        host = host_of(request.peer)
        return any(
            member.client_id == client_id and host_of(member.peer) == host
            for member in group.members.values()
        )

    def _exists(self, ref: QueueRef) -> bool:
        topic = self._topics.get(ref.topic)
        return (
            topic is not None
            and ref.broker_name == self._clients.broker_name
            and 0 <= ref.queue_id < topic.read_queue_nums
        )


def _too_many(body: LockBatchBody) -> Reply:
    return Reply(
        ResponseCode.INVALID_PARAMETER,
        f"{len(body.mq_set)} queues in one request; {QUEUES_MAX} are allowed",
    )
