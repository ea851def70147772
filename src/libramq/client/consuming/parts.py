"""The parts of a push consumer's core, and how they are connected."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.due import Due
from libramq.client.consuming.handling.consumption import Consumption
from libramq.client.consuming.handling.delivering import Delivering
from libramq.client.consuming.handling.duplicates import Duplicates
from libramq.client.consuming.handling.handler_deadlines import HandlerDeadlines
from libramq.client.consuming.handling.orderly_consumption import OrderlyConsumption
from libramq.client.consuming.membership.broker_contacts import BrokerContacts
from libramq.client.consuming.membership.coordination import MemberCoordination
from libramq.client.consuming.membership.lease import Lease
from libramq.client.consuming.membership.membership import Membership
from libramq.client.consuming.membership.presence import Presence
from libramq.client.consuming.membership.rebalancing import Rebalancing
from libramq.client.consuming.membership.subscription import with_retry_topic
from libramq.client.consuming.ownership.giving_up import GivingUp
from libramq.client.consuming.ownership.opening import Opening
from libramq.client.consuming.ownership.owned_queues import OwnedQueues
from libramq.client.consuming.ownership.queue_locking import QueueLocking
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.pulling.pulling import Pulling
from libramq.client.consuming.timers import DueItems
from libramq.client.consuming.troubles import Troubles
from libramq.client.routing.route_table import RouteTable
from libramq.clock import MonotonicMs
from libramq.filter.selector import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts, which receive the core's events."""

    troubles: Troubles
    timers: DueItems[Due]
    offsets: OffsetStore
    routes: RouteTable
    contacts: BrokerContacts
    presence: Presence
    table: QueueTable
    pulling: Pulling
    locking: QueueLocking
    commits: Commits
    owned: OwnedQueues
    opening: Opening
    giving_up: GivingUp
    consumption: Consumption
    deadlines: HandlerDeadlines
    rebalancing: Rebalancing
    coordination: MemberCoordination

    @classmethod
    def of(
        cls,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        monotonic_ms: Callable[[], MonotonicMs],
    ) -> Self:
        """Build the parts of one consumer."""
        if not settings.broadcasting:
            subscriptions = with_retry_topic(settings.group, subscriptions)
        timers, offsets, routes, duplicates = DueItems[Due](), OffsetStore(), RouteTable(), Duplicates()
        lease, troubles = Lease(monotonic_ms), Troubles()
        table = QueueTable(lease)
        contacts = BrokerContacts(routes, timers)
        delivering = Delivering(settings, lease)
        pulling = Pulling(settings, subscriptions, routes, offsets, timers, table, delivering, duplicates)
        locking = QueueLocking(settings, routes, timers, table)
        commits = Commits(settings, routes, offsets, table, lease)
        owned = OwnedQueues(settings, routes, offsets, timers, table, pulling, locking, commits)
        opening = Opening(offsets, table, pulling, owned)
        giving_up = GivingUp(settings, routes, offsets, timers, table, commits, owned, opening)
        kind = OrderlyConsumption if settings.orderly else Consumption
        membership = Membership(settings, subscriptions, timers, contacts.addresses_to_query)
        consumption = kind(
            settings, routes, offsets, timers, table, delivering, duplicates, giving_up, pulling
        )
        coordination = MemberCoordination(
            settings,
            membership,
            contacts,
            timers,
            table,
            lease,
            duplicates,
            owned,
            opening,
            giving_up,
            troubles,
        )
        return cls(
            troubles=troubles,
            timers=timers,
            offsets=offsets,
            routes=routes,
            contacts=contacts,
            presence=Presence(settings, subscriptions, routes, contacts, timers),
            table=table,
            pulling=pulling,
            locking=locking,
            commits=commits,
            owned=owned,
            opening=opening,
            giving_up=giving_up,
            consumption=consumption,
            deadlines=HandlerDeadlines(settings, timers, table, consumption, coordination),
            rebalancing=Rebalancing(
                settings, subscriptions, routes, contacts, timers, table, owned, giving_up
            ),
            coordination=coordination,
        )
