"""The services of a broker: the processor of every request that it takes."""

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from libramq.broker.message_log import MessageLog
from libramq.broker.processor.client_management import ClientManagement
from libramq.broker.processor.consumer_offset import ConsumerOffsetRequests
from libramq.broker.processor.group_admin import GroupAdministration
from libramq.broker.processor.group_membership import GroupMembership
from libramq.broker.processor.open_queue import OpenQueue
from libramq.broker.processor.peers import PeerRequests
from libramq.broker.processor.pull_message import PullMessage
from libramq.broker.processor.query_assignment import QueryAssignment
from libramq.broker.processor.queue_lock import QueueLockRequests
from libramq.broker.processor.queue_offset import QueueOffsets
from libramq.broker.processor.send_back import SendBack
from libramq.broker.processor.send_message import SendMessage
from libramq.broker.processor.statistics import Statistics
from libramq.broker.processor.topic_admin import TopicAdministration
from libramq.broker.redelivery import Redelivery
from libramq.broker.stored_properties import BrokerProperties
from libramq.clock import Clock
from libramq.codes import RequestCode as R
from libramq.message.ids import UniqueIdGenerator
from libramq.remoting.body.topic_config import PERM_READ
from libramq.rpc.endpoint import BatchProcessor, Processor, Woken

if TYPE_CHECKING:
    from libramq.broker.broker import Broker


class Services:
    """The processors, each given the parts of the broker that it uses.

    answer: takes the answers to held requests that another request brings about.
    """

    def __init__(
        self,
        broker: "Broker",
        *,
        clock: Clock,
        randomness: random.Random,
        process_id: int,
        answer: Callable[[Woken], None],
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._randomness = randomness
        self._process_id = process_id
        self._answer = answer
        self.pulls = self._pull_processor()

    def processors(self) -> Mapping[int, Processor]:
        """The processor of each request."""
        broker = self._broker
        clients = ClientManagement(
            consumers=broker.consumers,
            producers=broker.producers,
            topics=broker.topics,
            groups=broker.groups,
            gone=broker.coordination.closed,
        )
        membership = GroupMembership(
            coordination=broker.coordination, groups=broker.groups, topics=broker.topics
        )
        offsets = self._offset_processor()
        opening = OpenQueue(
            fences=broker.fences,
            offsets=broker.offsets,
            topics=broker.topics,
            held=broker.held,
            answer=self._answer,
        )
        queues = QueueOffsets(broker.store)
        locks = QueueLockRequests(
            locks=broker.locks, clients=broker.consumers, topics=broker.topics, groups=broker.groups
        )
        topics = TopicAdministration(
            topics=broker.topics,
            store=broker.store,
            offsets=broker.offsets,
            clients=broker.consumers,
            coordination=broker.coordination,
            held=broker.held,
            address=broker.config.address,
            answer=self._answer,
        )
        groups = GroupAdministration(
            groups=broker.groups,
            offsets=broker.offsets,
            coordination=broker.coordination,
            held=broker.held,
            answer=self._answer,
        )
        assignments = QueryAssignment(
            clients=broker.consumers,
            topics=broker.topics,
            groups=broker.groups,
            queues=broker.coordination.queues,
            assigner=broker.assigner,
        )
        statistics = Statistics(
            broker_name=broker.config.broker_name,
            topics=broker.topics,
            store=broker.store,
            offsets=broker.offsets,
            consumers=broker.consumers,
            producers=broker.producers,
            health=broker.health,
        )
        send_back = SendBack(
            store=broker.store,
            log=MessageLog(broker.store),
            groups=broker.groups,
            redelivery=Redelivery(broker.topics, self._randomness),
            schedule=broker.schedule,
        )
        return {
            R.PULL_MESSAGE: self.pulls.handle,
            R.LITE_PULL_MESSAGE: self.pulls.handle,
            R.CONSUMER_SEND_MSG_BACK: send_back.handle,
            R.VIEW_MESSAGE_BY_ID: queues.view_message,
            R.QUERY_CONSUMER_OFFSET: offsets.query,
            R.SEARCH_OFFSET_BY_TIMESTAMP: queues.by_timestamp,
            R.GET_MAX_OFFSET: queues.max_offset,
            R.GET_MIN_OFFSET: queues.min_offset,
            R.GET_EARLIEST_MSG_STORETIME: queues.earliest_store_time,
            R.HEART_BEAT: clients.heartbeat,
            R.UNREGISTER_CLIENT: clients.unregister,
            R.CHECK_CLIENT_CONFIG: clients.check_config,
            R.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
            R.LOCK_BATCH_MQ: locks.lock,
            R.UNLOCK_BATCH_MQ: locks.unlock,
            R.UPDATE_AND_CREATE_TOPIC: topics.create,
            R.DELETE_TOPIC_IN_BROKER: topics.delete,
            R.GET_ALL_TOPIC_CONFIG: topics.list_all,
            R.GET_TOPIC_CONFIG: topics.get,
            R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
            R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.create,
            R.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.list_all,
            R.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get,
            R.GET_TOPIC_STATS_INFO: statistics.topic_stats,
            R.GET_CONSUME_STATS: statistics.consume_stats,
            R.GET_CONSUMER_CONNECTION_LIST: statistics.consumer_connections,
            R.GET_PRODUCER_CONNECTION_LIST: statistics.producer_connections,
            R.QUERY_TOPIC_CONSUME_BY_WHO: statistics.topic_consumers,
            R.QUERY_TOPICS_BY_CONSUMER: statistics.group_topics,
            R.GET_BROKER_RUNTIME_INFO: broker.runtime.handle,
            R.GROUP_JOIN: membership.join,
            R.GROUP_POLL: membership.poll,
            R.GROUP_RELEASE: membership.release,
            R.GROUP_LEAVE: membership.leave,
            R.GROUP_REMOVE: membership.remove,
            R.GROUP_FIND: membership.find,
            R.OPEN_QUEUE: opening.handle,
            R.QUERY_ASSIGNMENT: assignments.query,
            R.SET_MESSAGE_REQUEST_MODE: assignments.set_mode,
            **self._peer_processors(),
        }

    def _peer_processors(self) -> Mapping[int, Processor]:
        """What other brokers ask; a broker without name servers is alone."""
        broker = self._broker
        if broker.cluster is None:
            return {}
        peers = PeerRequests(
            cluster=broker.cluster,
            coordination=broker.coordination,
            consumers=broker.consumers,
            assigner=broker.assigner,
        )
        return {
            R.PEER_GRANT: peers.grant,
            R.PEER_MEMBERS: peers.members,
            R.PEER_LIST: peers.list,
            R.PEER_GATHER: peers.gather,
            R.PEER_STARTED: peers.started,
            R.PEER_ASSIGN: peers.assign,
            R.PEER_GIVEN: peers.given,
            R.PEER_REMOVED: peers.removed,
        }

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """The processors that take all requests of one read at once."""
        send = self._send_processor().handle_many
        update = self._offset_processor().update_many
        return {
            R.SEND_MESSAGE: send,
            R.SEND_MESSAGE_V2: send,
            R.SEND_BATCH_MESSAGE: send,
            R.UPDATE_CONSUMER_OFFSET: update,
        }

    def _offset_processor(self) -> ConsumerOffsetRequests:
        broker = self._broker
        return ConsumerOffsetRequests(
            offsets=broker.offsets,
            fences=broker.fences,
            topics=broker.topics,
            groups=broker.groups,
            committed=broker.consumers.committed,
        )

    def _pull_processor(self) -> PullMessage:
        broker = self._broker
        return PullMessage(
            store=broker.store,
            topics=broker.topics,
            groups=broker.groups,
            clients=broker.consumers,
            offsets=broker.offsets,
            fences=broker.fences,
            held=broker.held,
            readable=bool(broker.config.broker_permission & PERM_READ),
            long_polling=broker.config.long_polling_enable,
            short_polling_ms=broker.config.short_polling_time_ms,
        )

    def _send_processor(self) -> SendMessage:
        broker, config, randomness = self._broker, self._broker.config, self._randomness
        return SendMessage(
            topics=broker.topics,
            groups=broker.groups,
            locks=broker.locks,
            log=MessageLog(broker.store),
            redelivery=Redelivery(broker.topics, randomness),
            properties=BrokerProperties(
                cluster=config.cluster_name, region=config.region_id, trace_on=config.trace_on
            ),
            schedule=broker.schedule,
            message_bytes_max=config.max_message_size,
            reject_transactions=config.reject_transaction_message,
            randomness=randomness,
            unique_id=UniqueIdGenerator(config.broker_ip, self._process_id, self._clock, randomness),
        )
