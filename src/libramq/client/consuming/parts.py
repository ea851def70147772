"""The parts of a push consumer's core, and how they are connected."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.fetching.fetched_batch import HeldBatches
from libramq.client.consuming.fetching.fetching import FetchConsumption, FetchDelivering, Fetching
from libramq.client.consuming.handling.consumption import Consumption, OrderlyConsumption
from libramq.client.consuming.handling.handler_deadlines import HandlerDeadlines
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.life import Troubles
from libramq.client.consuming.membership.coordination import MemberCoordination
from libramq.client.consuming.membership.membership import Membership
from libramq.client.consuming.membership.rebalancing import Rebalancing
from libramq.client.consuming.ownership.claims import Claims
from libramq.client.consuming.ownership.locks import Locks
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.ownership.transitions import TABLE
from libramq.client.consuming.persistence import Persistence
from libramq.client.consuming.pulling.delivering import Delivering
from libramq.client.consuming.pulling.duplicates import Duplicates
from libramq.client.consuming.pulling.pulling import Pulling
from libramq.client.consuming.queues.lease import Lease
from libramq.client.consuming.queues.owned_queue import HeldMessages
from libramq.client.consuming.queues.queue_table import QueueTable
from libramq.client.consuming.subscription import with_retry_topic
from libramq.client.consuming.timers import Timers
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs
from libramq.filter.subscription import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts, which receive the core's events."""

    troubles: Troubles
    locks: Locks
    own: Ownership
    claims: Claims
    persistence: Persistence
    consumption: Consumption
    deadlines: HandlerDeadlines
    rebalancing: Rebalancing
    coordination: MemberCoordination
    fetching: Fetching

    @classmethod
    def of(
        cls,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        monotonic_ms: Callable[[], MonotonicMs],
        failed: Callable[[str, Exception], None],
    ) -> Self:
        """Build the parts of one consumer."""
        subscriptions = with_retry_topic(settings, subscriptions)
        timers, routes, duplicates = Timers(failed), RouteTable(), Duplicates()
        offsets = OffsetStore(is_manual=not settings.auto_commit)
        lease, troubles = Lease(monotonic_ms), Troubles()
        table = QueueTable(lease, HeldBatches if settings.fetches else HeldMessages)
        known_brokers = KnownBrokers(settings, subscriptions, routes, timers)
        delivering = (FetchDelivering if settings.fetches else Delivering)(settings, lease)
        pulling = Pulling(
            settings, subscriptions, offsets, timers, table, known_brokers, delivering, duplicates
        )
        commits = Commits(settings, offsets, table, known_brokers)
        own = Ownership(
            transitions=TABLE,
            settings=settings,
            routes=routes,
            offsets=offsets,
            timers=timers,
            known_brokers=known_brokers,
            round_due=timers.new(lambda now_ms: rebalancing.begin(now_ms) if coordination.allocates else []),
            table=table,
            pulling=pulling,
            commits=commits,
            uses_locks=settings.orderly and not settings.broadcasting,
            failed=failed,
        )
        locks, claims = Locks(own), Claims(own)
        membership = Membership(settings, subscriptions, timers, known_brokers.addresses_to_query)
        consumption = _consumption_of(settings)(own, delivering, duplicates)
        rebalancing = Rebalancing(subscriptions, own)
        commits_due = timers.new(lambda now_ms: persistence.due(now_ms))  # noqa: PLW0108 # It is made below.
        coordination = MemberCoordination(
            membership, rebalancing, duplicates, own, locks, claims, troubles, commits_due
        )
        persistence = Persistence(own, coordination, commits_due)
        deadlines = HandlerDeadlines(settings, timers, table, consumption, coordination)
        coordination.overrun = deadlines.overrun
        return cls(
            troubles=troubles,
            locks=locks,
            own=own,
            claims=claims,
            persistence=persistence,
            consumption=consumption,
            deadlines=deadlines,
            rebalancing=rebalancing,
            coordination=coordination,
            fetching=Fetching(own, rebalancing),
        )


def _consumption_of(settings: ConsumerSettings) -> type[Consumption]:
    if settings.fetches:
        return FetchConsumption
    return OrderlyConsumption if settings.orderly else Consumption
