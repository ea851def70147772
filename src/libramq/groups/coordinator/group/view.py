"""A view of a coordinated group: for the member list, metrics and `libra groups`."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from libramq.groups.coordinator.coordinated_group import CoordinatedGroup
from libramq.groups.handover_ledger import Holding
from libramq.message.queue import MessageQueue

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member. owned: its queues and their epochs; revoked: those of them that it has to release."""

    client_id: str
    member: str
    instance: str | None
    session_ms: int
    owned: dict[MessageQueue, int]
    revoked: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group at one moment. owners: each queue's holder. strategy: the one most members name."""

    name: str
    epoch: int
    mode: str
    strategy: str | None
    is_settled: bool
    members: tuple[MemberView, ...]
    owners: dict[MessageQueue, Holding]


def view_of(group: CoordinatedGroup[P, Any]) -> GroupView:
    """Return a view of the group as it is now."""
    revoked = group.balance.queues.revoked
    return GroupView(
        name=group.name,
        epoch=group.balance.queues.epoch,
        mode=group.mode,
        strategy=group.balance.strategy.name,
        is_settled=group.is_settled,
        members=tuple(
            MemberView(
                client_id=member.profile.client_id,
                member=member.id,
                instance=member.profile.instance,
                session_ms=member.profile.session_ms,
                owned={queue: holding.epoch for queue, holding in group.balance.queues.of(member.id).items()},
                revoked=tuple(queue for queue in group.balance.queues.of(member.id) if queue in revoked),
            )
            for member in group.members
        ),
        owners=dict(group.balance.queues.holdings),
    )
