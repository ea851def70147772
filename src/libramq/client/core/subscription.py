"""The subscriptions of a consumer, and the heartbeat that declares them to brokers.

Upstream: impl/consumer/RebalanceImpl.subscriptionInner, common/filter/FilterAPI.java.
"""

from collections.abc import Mapping

from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.filter.subscription import BROADCASTING, CLUSTERING, SubscriptionData
from libramq.filter.tag import EVERYTHING, TagFilter
from libramq.message.names import retry_topic
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData

Subscriptions = Mapping[str, TagFilter]


def with_retry_topic(group: str, subscriptions: Subscriptions) -> dict[str, TagFilter]:
    """Return the user's subscriptions and that of the group's retry topic, which is read whole."""
    return {**subscriptions, retry_topic(group): EVERYTHING}


def heartbeat_data(settings: ConsumerSettings, subscriptions: Subscriptions, version: int) -> HeartbeatData:
    """Return the subscription for heartbeats; brokers keep the one with the highest version."""
    consumer = ConsumerData(
        group_name=settings.group,
        message_model=BROADCASTING if settings.broadcasting else CLUSTERING,
        consume_from_where=settings.consume_from.value,
        subscription_data_set=[
            _subscription(topic, tag_filter, version) for topic, tag_filter in subscriptions.items()
        ],
    )
    return HeartbeatData(client_id=settings.client_id, consumer_data_set=[consumer])


def _subscription(topic: str, tag_filter: TagFilter, version: int) -> SubscriptionData:
    return SubscriptionData(
        topic=topic,
        sub_string=tag_filter.expression,
        tags_set=sorted(tag_filter.tags),
        code_set=sorted(tag_filter.codes or ()),
        sub_version=version,
    )
