"""The subscriptions of a consumer, and the heartbeat that declares them to brokers.

Upstream: impl/consumer/RebalanceImpl.subscriptionInner, common/filter/FilterAPI.java.
"""

from collections.abc import Mapping

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.filter.sql import SQL92
from libramq.filter.subscription import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    Selector,
    Sql,
    SubscriptionData,
)
from libramq.filter.tag import EVERYTHING
from libramq.message.names import retry_topic
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData

Subscriptions = Mapping[str, Selector]


def with_retry_topic(settings: ConsumerSettings, subscriptions: Subscriptions) -> Subscriptions:
    """Return the user's subscriptions and, if there is a retry topic, one to all of its messages."""
    if not settings.has_retry_topic:
        return subscriptions
    return {**subscriptions, retry_topic(settings.group): EVERYTHING}


def heartbeat_data(settings: ConsumerSettings, subscriptions: Subscriptions, version: int) -> HeartbeatData:
    """Return the subscription for heartbeats; brokers keep the one with the highest version."""
    if settings.assigns:  # The consumer reads without being a member.
        return HeartbeatData(client_id=settings.client_id)
    consumer = ConsumerData(
        group_name=settings.group,
        consume_type=CONSUME_ACTIVELY if settings.fetches else CONSUME_PASSIVELY,
        message_model=BROADCASTING if settings.broadcasting else CLUSTERING,
        consume_from_where=settings.consume_from.value,
        subscription_data_set=[
            _subscription(topic, selector, version) for topic, selector in subscriptions.items()
        ],
    )
    return HeartbeatData(client_id=settings.client_id, consumer_data_set=[consumer])


def _subscription(topic: str, selector: Selector, version: int) -> SubscriptionData:
    if isinstance(selector, Sql):
        return SubscriptionData(
            topic=topic, sub_string=selector.expression, sub_version=version, expression_type=SQL92
        )
    return SubscriptionData(
        topic=topic,
        sub_string=selector.expression,
        tags_set=tuple(sorted(selector.tags)),
        code_set=tuple(sorted(selector.codes or ())),
        sub_version=version,
    )
