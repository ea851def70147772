"""DescribeGroups (15), ListGroups (16), DeleteGroups (42), ConsumerGroupDescribe (69): listing, describing
and deleting groups.

The groups are those of this broker's table, of all protocols:

    a classic group with members     its state, and its members' protocol type
    a group of KIP-848               its state; ConsumerGroupDescribe has current and target partitions
    a group without members          Empty; its committed offsets remain
    members of RocketMQ's protocol   Stable, with the protocol type `rocketmq`, which Kafka's tools skip

Each describe request answers GROUP_ID_NOT_FOUND for groups of the other protocol; tools then try the other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from libramq.auth.audit import Changed, Kind
from libramq.auth.operation import group
from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.broker.groups.removal import Removal
from libramq.errors import BrokerError
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.classic.state import ClassicMember, Status
from libramq.groups.modern.member import ModernMember
from libramq.groups.modern.values import NO_PARTITIONS, Partition, Partitions
from libramq.kernel.connection import Principal
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.node import id_of
from libramq.protocols.kafka.refusals import code_of_write
from libramq.wire.kafka.apis import groups as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.subscription import CONSUMER

STATES: Final[Mapping[Status, str]] = {
    Status.EMPTY: "Empty",
    Status.PREPARING_REBALANCE: "PreparingRebalance",
    Status.COMPLETING_REBALANCE: "CompletingRebalance",
    Status.STABLE: "Stable",
}
DEAD: Final = "Dead"
#: The protocol type of groups with members of RocketMQ's protocol.
ROCKETMQ: Final = "rocketmq"
#: The types of groups, as filters name them.
CLASSIC: Final = "classic"
CONSUMER_TYPE: Final = "consumer"
#: The first version of DescribeGroups with an error for a group that does not exist.
_NOT_FOUND_FROM: Final = 6


class GroupAdministration:
    """Answers requests about groups."""

    def __init__(
        self,
        groups: BrokerGroups,
        offsets: GroupOffsets,
        removal: Removal,
        changed: Changed,
    ) -> None:
        self._groups = groups
        self._nodes = groups.nodes
        self._offsets = offsets
        self._removal = removal
        self._changed = changed

    @serves(wire.ListGroupsRequest)
    def list(self, request: wire.ListGroupsRequest, slot: Slot) -> None:
        """Answer with the groups that match the filters; many of them in several turns."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        here = sorted(filter(self._nodes.is_coordinator, self._groups.names()))
        names = [name for name in here if not types or self._type(name).lower() in types]

        def look(name: str) -> wire.ListedGroup | None:
            state, protocol_type = self._state(name)
            is_wanted = not states or state.lower() in states
            if not is_wanted or self._groups.refusal(name, slot.principal) is not None:
                return None
            return wire.ListedGroup(
                group_id=name, protocol_type=protocol_type, group_state=state, group_type=self._type(name)
            )

        def answer(found: Sequence[wire.ListedGroup | None]) -> None:
            slot.answer(wire.ListGroupsResponse(groups=tuple(filter(None, found))))

        slot.each(names, look, answer)

    def _is_modern(self, name: str) -> bool:
        """Return whether a group has members of KIP-848's protocol."""
        return self._groups.modern.get(name) is not None

    def _type(self, name: str) -> str:
        return CONSUMER_TYPE if self._is_modern(name) else CLASSIC

    def _state(self, name: str) -> tuple[str, str]:
        """Return the state of a group, and its protocol type."""
        modern = self._groups.modern.get(name)
        if modern is not None:
            return modern.state, CONSUMER
        found = self._groups.classic.get(name)
        if found is not None:
            return STATES[found.status], found.protocol_type or ""
        if self._groups.has_foreign_members(name):
            return STATES[Status.STABLE], ROCKETMQ
        return STATES[Status.EMPTY], ""

    @serves(wire.DescribeGroupsRequest)
    def describe(self, request: wire.DescribeGroupsRequest, slot: Slot) -> None:
        """Answer with the groups and their members."""
        describe = partial(self._described, slot.principal, has_error=slot.version >= _NOT_FOUND_FROM)
        slot.each(
            list(dict.fromkeys(request.groups)),  # Named twice, described once.
            describe,
            lambda groups: slot.answer_with(
                lambda: wire.DescribeGroupsResponse(groups=tuple(groups)),
                len(groups) + sum(len(each.members) for each in groups),
            ),
        )

    def _described(self, principal: Principal, name: str, *, has_error: bool) -> wire.DescribedGroup:
        refusal = self._groups.member_refusal(name, principal)
        if refusal is not None:
            return wire.DescribedGroup(group_id=name, error_code=refusal)
        if not self._groups.exists(name) or self._is_modern(name):
            code = ErrorCode.GROUP_ID_NOT_FOUND if has_error else ErrorCode.NONE
            return wire.DescribedGroup(
                group_id=name,
                error_code=code,
                error_message=f"there is no classic group {name}",
                group_state=DEAD,
            )
        state, protocol_type = self._state(name)
        found = self._groups.classic.get(name)
        return wire.DescribedGroup(
            group_id=name,
            group_state=state,
            protocol_type=protocol_type,
            protocol_data=(found.protocol_name or "") if found is not None and _is_stable(found) else "",
            members=tuple(_classic_member(found, each) for each in found.members.values()) if found else (),
        )

    @serves(wire.ConsumerGroupDescribeRequest)
    def describe_modern(self, request: wire.ConsumerGroupDescribeRequest, slot: Slot) -> None:
        """Answer with the groups and their members; a large answer is made on a thread."""
        slot.each(
            list(dict.fromkeys(request.group_ids)),  # Named twice, described once.
            partial(self._modern_described, slot.principal),
            lambda groups: slot.answer_with(
                lambda: wire.ConsumerGroupDescribeResponse(groups=tuple(each.whole() for each in groups)),
                sum(each.size for each in groups),
            ),
        )

    def _modern_described(self, principal: Principal, name: str) -> "_Described":
        described_group = partial(wire.DescribedConsumerGroup, group_id=name)
        refusal = self._groups.member_refusal(name, principal)
        if refusal is not None:
            return _Described(described_group(error_code=refusal))
        group = self._groups.modern.get(name)
        if group is None:
            remark, code = f"{name} has no members of KIP-848's protocol", ErrorCode.GROUP_ID_NOT_FOUND
            return _Described(described_group(error_code=code, error_message=remark))
        assigned = (each.assigned for each in group.members.values())
        read = {part.topic for parts in (*assigned, *group.target.values()) for part in parts}
        if not all(self._groups.may_locate(topic, principal) for topic in sorted({*group.topics, *read})):
            # As at Kafka's brokers: the members' topics would be visible.
            remark = "its members read topics that you may not look up"
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _Described(described_group(error_code=code, error_message=remark))
        described = described_group(
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

    @serves(wire.DeleteGroupsRequest)
    def delete(self, request: wire.DeleteGroupsRequest, slot: Slot) -> None:
        """Delete groups without members."""
        names = list(dict.fromkeys(request.groups_names))  # Named twice, deleted once.
        slot.begin_each(names, partial(self._delete, slot), partial(self._answer_deleted, slot, names))

    def _answer_deleted(self, slot: Slot, names: Sequence[str], codes: Sequence[ErrorCode]) -> None:
        # One that is not found may have been deleted by an earlier attempt whose offsets are not journalled.
        gone = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
        is_any_gone = any(code in gone for code in codes)
        failed = code_of_write(self._offsets.committing) if is_any_gone else ErrorCode.NONE
        reason = failed.name if failed else None
        for name, code in zip(names, codes, strict=True):
            if code is ErrorCode.NONE:
                self._changed(Kind.DELETED, slot.principal, "DeleteGroups", [str(group(name))], reason)
        results = tuple(
            wire.DeletableGroupResult(group_id=name, error_code=failed or code if code in gone else code)
            for name, code in zip(names, codes, strict=True)
        )
        slot.answer_with(lambda: wire.DeleteGroupsResponse(results=results), len(results))

    def _delete(self, slot: Slot, name: str, put: Callable[[ErrorCode], None]) -> None:
        """Delete a group at the other brokers, then here: where one did not answer, it can be tried again."""

        def deleted(is_everywhere: bool) -> None:
            # A member may have come meanwhile.
            code = self._delete_refusal(slot.principal, name)
            if code is ErrorCode.NONE and not is_everywhere:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if code is ErrorCode.NONE:
                try:
                    self._removal.remove_group(name)
                except BrokerError:  # The disk refuses it.
                    code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # Clients retry.
            put(code)

        refusal = self._delete_refusal(slot.principal, name)
        if refusal is ErrorCode.NONE:
            self._offsets.delete(name, slot.guarded(deleted))
        else:
            put(refusal)

    def _delete_refusal(self, principal: Principal, name: str) -> ErrorCode:
        """Return why a group may not be deleted, or NONE."""
        refusal = self._groups.delete_refusal(name, principal)
        if refusal is not None:
            return refusal
        if not self._groups.exists(name):
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_used = (
            self._groups.classic.get(name) is not None
            or self._groups.has_foreign_members(name)
            or self._is_modern(name)
        )
        return ErrorCode.NON_EMPTY_GROUP if is_used else ErrorCode.NONE


def _is_stable(found: ClassicGroup) -> bool:
    return found.status is Status.STABLE


def _classic_member(found: ClassicGroup, member: ClassicMember) -> wire.DescribedGroupMember:
    is_stable = _is_stable(found)
    return wire.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(found.protocol_name) if is_stable else b"",
        member_assignment=member.assignment if is_stable else b"",
    )


class _Member(NamedTuple):
    """A member, with its large parts apart, to be put into the answer later."""

    described: wire.DescribedConsumerGroupMember
    topics: frozenset[str]
    assigned: Partitions
    target: Partitions

    def whole(self) -> wire.DescribedConsumerGroupMember:
        """Return the complete member."""
        return replace(
            self.described,
            subscribed_topic_names=tuple(sorted(self.topics)),
            assignment=_assignment(self.assigned),
            target_assignment=_assignment(self.target),
        )


class _Described(NamedTuple):
    """The current state of a group and its members."""

    group: wire.DescribedConsumerGroup
    members: Sequence[_Member] = ()

    @property
    def size(self) -> int:
        """Return the number of elements in the answer."""
        return 1 + sum(1 + len(each.topics) + len(each.assigned) + len(each.target) for each in self.members)

    def whole(self) -> wire.DescribedConsumerGroup:
        """Return the group with complete members."""
        return replace(self.group, members=tuple(each.whole() for each in self.members))


def _member(member: ModernMember) -> wire.DescribedConsumerGroupMember:
    return wire.DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_regex=member.pattern or None,
        assignment=wire.DescribedAssignment(),
        target_assignment=wire.DescribedAssignment(),
        member_type=wire.CONSUMER_MEMBER,
    )


def _assignment(partitions: Iterable[Partition]) -> wire.DescribedAssignment:
    topics: dict[str, list[int]] = {}
    for each in sorted(partitions):
        topics.setdefault(each.topic, []).append(each.number)
    return wire.DescribedAssignment(
        topic_partitions=tuple(
            wire.DescribedTopicPartitions(topic_id=id_of(topic), topic_name=topic, partitions=tuple(indexes))
            for topic, indexes in topics.items()
        )
    )
