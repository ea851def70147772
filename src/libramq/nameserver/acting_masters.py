"""Acting masters: slaves at the address of their master in routes, while that is gone.

Clients then lock queues and commit offsets at the slave with the lowest id, of brokers with
enableSlaveActingMaster. Upstream: RouteInfoManager.pickupTopicRouteData.
"""

import msgspec

from libramq.formats.route import MASTER_ID, BrokerData, TopicRouteData
from libramq.formats.tables import PERM_WRITE
from libramq.message.names import MEMBERS_TOPIC_PREFIX, REBALANCE_EVENTS_TOPIC


def with_acting_masters(topic: str, route: TopicRouteData) -> TopicRouteData:
    """Return a topic's route with acting masters: for queues that nobody may write.

    Our brokers look at the topic of rebalance events for the masters among which groups are divided: a slave
    coordinates none, so its groups must find another broker.
    """
    if topic.startswith(MEMBERS_TOPIC_PREFIX) or topic == REBALANCE_EVENTS_TOPIC:
        return route
    unwritable = {each.broker_name for each in route.queue_datas if not each.perm & PERM_WRITE}
    brokers = [_acting(each) if each.broker_name in unwritable else each for each in route.broker_datas]
    return msgspec.structs.replace(route, broker_datas=brokers)


def _acting(broker: BrokerData) -> BrokerData:
    addresses = broker.broker_addrs
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    lowest = min(addresses)
    acting = {MASTER_ID: addresses[lowest]} | {id_: at for id_, at in addresses.items() if id_ != lowest}
    return msgspec.structs.replace(broker, broker_addrs=acting)
