"""ConsumerGroupDescribe: groups of KIP-848, with what each member has and shall have.

Other groups are answered GROUP_ID_NOT_FOUND, at which tools ask with DescribeGroups.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from libramq.groups.modern.member import ModernMember
from libramq.groups.modern.values import NO_PARTITIONS, Partition, Partitions
from libramq.kernel.connection import Principal
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.topic_ids import id_of
from libramq.wire.kafka.apis import consumer_group_describe as wire
from libramq.wire.kafka.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from libramq.wire.kafka.error_code import ErrorCode


class ModernGroupDescriptions:
    """Answers ConsumerGroupDescribe."""

    def __init__(self, groups: BrokerGroups) -> None:
        self._groups = groups

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {ConsumerGroupDescribeRequest: self.describe}

    def describe(self, request: ConsumerGroupDescribeRequest, slot: Slot) -> None:
        """Answer with the groups and their members; with many of them, or many topics, from a thread."""
        slot.each(
            list(dict.fromkeys(request.group_ids)),  # Named twice, described once.
            partial(self._described, slot.principal),
            lambda groups: slot.answer_with(
                lambda: ConsumerGroupDescribeResponse(groups=tuple(each.whole() for each in groups)),
                sum(each.size for each in groups),
            ),
        )

    def _described(self, principal: Principal, name: str) -> "_Described":
        refusal = self._groups.member_refusal(name, principal)
        if refusal is not None:
            return _Described(wire.DescribedGroup(group_id=name, error_code=refusal))
        group = self._groups.modern.get(name)
        if group is None:
            remark = f"{name} has no members of KIP-848's protocol"
            code = ErrorCode.GROUP_ID_NOT_FOUND
            return _Described(wire.DescribedGroup(group_id=name, error_code=code, error_message=remark))
        described = wire.DescribedGroup(
            group_id=name,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor,
        )
        target = group.target
        members = [
            _Member(_member(each), each.named, each.assigned, target.get(each.member_id, NO_PARTITIONS))
            for each in group.members.values()
        ]
        return _Described(described, members)


class _Member(NamedTuple):
    """A member, and what is too much to be put into its answer at once."""

    described: wire.Member
    topics: frozenset[str]
    assigned: Partitions
    target: Partitions

    def whole(self) -> wire.Member:
        """Return the member with all of that."""
        return replace(
            self.described,
            subscribed_topic_names=tuple(sorted(self.topics)),
            assignment=_assignment(self.assigned),
            target_assignment=_assignment(self.target),
        )


class _Described(NamedTuple):
    """A group and its members, as they are now."""

    group: wire.DescribedGroup
    members: Sequence[_Member] = ()

    @property
    def size(self) -> int:
        """Return how many elements its answer has."""
        return 1 + sum(1 + len(each.topics) + len(each.assigned) + len(each.target) for each in self.members)

    def whole(self) -> wire.DescribedGroup:
        """Return the group with its members."""
        return replace(self.group, members=tuple(each.whole() for each in self.members))


def _member(member: ModernMember) -> wire.Member:
    return wire.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_regex=member.pattern or None,
        assignment=wire.Assignment(),
        target_assignment=wire.Assignment(),
        member_type=wire.CONSUMER_MEMBER,
    )


def _assignment(partitions: Iterable[Partition]) -> wire.Assignment:
    topics: dict[str, list[int]] = {}
    for each in sorted(partitions):
        topics.setdefault(each.topic, []).append(each.number)
    return wire.Assignment(
        topic_partitions=tuple(
            wire.TopicPartitions(topic_id=id_of(topic), topic_name=topic, partitions=tuple(indexes))
            for topic, indexes in topics.items()
        )
    )
