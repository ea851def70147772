"""Heartbeats: what a heartbeat registers (groups and their retry topics, subscriptions, filters), how many
groups a client may have, and what leaving ends.

    Heartbeat ─► producer groups ─► consumer groups: room? ─► group ─► retry topic ─► member ─► filters

Upstream: ClientManageProcessor.java, ConsumerManageProcessor.java.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from libramq.broker.files.tables import Tables
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.pull import PullFilters
from libramq.clock import Now
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.groups.consumer_group import Consumer, Member
from libramq.groups.pending_notifications import Notice
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.rebalance_event import Reason
from libramq.kernel.connection import ANONYMOUS, Connection, Principal
from libramq.kernel.work import Work
from libramq.message import names

#: Ours: groups of one process.
GROUPS_PER_CLIENT_MAX: Final = 1_000
#: Ours: clientIP@instanceName is some 40 characters.
CLIENT_ID_LENGTH_MAX: Final = 255


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A client's description of itself.

    language, version: of its library. is_stock: it knows no coordinator. lease_ended: it reports the end of
    its lease. fingerprint: of its subscriptions; 0: unknown. without_subscriptions: they are unchanged and
    omitted.
    notify: sends it notices of changes of its groups, probes, and checks of its transactions; None: its
    protocol has none. principal: its sender.
    """

    client_id: str
    producer_groups: Sequence[str] = ()
    consumers: Sequence[Consumer] = ()
    language: str = ""
    version: int = 0
    is_stock: bool = True
    lease_ended: bool = False
    fingerprint: int = 0
    without_subscriptions: bool = False
    notify: Callable[[Notice[Connection]], None] | None = None
    principal: Principal = ANONYMOUS


class HeartbeatResult(NamedTuple):
    """The result of a heartbeat.

    is_changed: the client must send its subscriptions next time. creates_topic: a group's retry topic, by
    which tools find the group, was created; its first member waits until the name servers know it. refused:
    the error of the last refused group; the others count.
    """

    is_changed: bool
    creates_topic: bool
    refused: BrokerError | None


def require_client_id(client_id: str) -> None:
    """Raise BrokerError for a client id that is too long, or has control characters (terminals obey them)."""
    if not 0 < len(client_id) <= CLIENT_ID_LENGTH_MAX:
        raise broker_error(ResponseCode.INVALID_PARAMETER, f"a client id of {len(client_id)} characters")
    if names.has_controls(client_id):
        raise broker_error(ResponseCode.INVALID_PARAMETER, "a client id has control characters")


class Heartbeats:
    """Takes heartbeats. left: called with every connection that has left its last group."""

    def __init__(
        self,
        consumers: ConsumerClients,
        producers: ProducerGroups[Connection],
        tables: Tables,
        filters: PullFilters,
        left: Callable[[Connection], None],
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._topics, self._groups = tables.topics, tables.groups
        self._filters = filters
        self._left = left

    def beat(self, heartbeat: Heartbeat, peer: Connection, now: Now) -> Work[HeartbeatResult]:
        """Apply a heartbeat; the other members of its groups are notified of changes.

        Raises BrokerError for a heartbeat that no client would send.
        """
        require_client_id(heartbeat.client_id)
        if len(heartbeat.consumers) + len(heartbeat.producer_groups) > GROUPS_PER_CLIENT_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER, f"over {GROUPS_PER_CLIENT_MAX} groups in one heartbeat"
            )
        for name in heartbeat.producer_groups:
            if names.is_valid_group(name):
                self._producers.beat(name, _member(heartbeat, peer, now))
        refused: BrokerError | None = None
        creates_topic = False
        is_changed = heartbeat.fingerprint == 0  # Version 1 always gets this, and ignores it.
        for consumer in heartbeat.consumers:
            yield None
            if not peer.is_open:  # It has disconnected meanwhile.
                break
            try:
                self._groups.require_not_taken(consumer.group)
                if not heartbeat.without_subscriptions:
                    self._consumers.require_room(consumer.group, peer, consumer.subscriptions)
            except BrokerError as taken:
                refused = taken.with_traceback(None)  # The traceback would form a cycle with this frame.
                continue
            config = self._groups.find(consumer.group, now.wall_ms)
            if config is None:
                continue  # Upstream skips groups that may not be created.
            creates_topic |= names.retry_topic(consumer.group) not in self._topics
            self._topics.for_retries(config, now.wall_ms)
            is_changed = (yield from self._beat_group(heartbeat, consumer, peer, now)) or is_changed
        return HeartbeatResult(is_changed, creates_topic, refused)

    def _beat_group(self, heartbeat: Heartbeat, consumer: Consumer, peer: Connection, now: Now) -> Work[bool]:
        """Apply one group; return whether the client must send its subscriptions next time."""
        without = heartbeat.without_subscriptions
        self._consumers.beat(_member(heartbeat, peer, now), consumer, without_subscriptions=without, now=now)
        group = self._consumers.group(consumer.group)
        if group is None:
            return False
        if not without:
            for step in self._filters.register(consumer.group, consumer.subscriptions):
                yield step
                if not peer.is_open:  # Its group's filters are already removed.
                    break
        # Version 2 of the heartbeat: whether another fingerprint was stored; version 1 stores 0.
        known, group.fingerprint = group.fingerprint, heartbeat.fingerprint
        is_other = known is not None and known != heartbeat.fingerprint
        # A client that omits its subscriptions must send them again after this broker's restart.
        return is_other or (without and not group.subscriptions)

    def leave(
        self, peer: Connection, now: Now, *, producer_group: str = "", consumer_group: str = ""
    ) -> None:
        """Remove a client from groups; only the connection that registered it can do that."""
        if producer_group:
            self._producers.remove(producer_group, peer)
        if consumer_group:
            self._consumers.leave(consumer_group, peer, Reason.MEMBER_LEFT, now=now)
            if not self._consumers.is_member(peer):
                self._left(peer)


def _member(heartbeat: Heartbeat, peer: Connection, now: Now) -> Member[Connection]:
    return Member(
        peer,
        heartbeat.client_id,
        heartbeat.language,
        heartbeat.version,
        now.monotonic_ms,
        is_stock=heartbeat.is_stock,
        lease_ended=heartbeat.lease_ended,
        notify=heartbeat.notify,
        principal=heartbeat.principal,
    )
