"""The saved state of a modern group (config/kafkaGroups.json), which outlives its coordinator's process.

    group            its epoch, assignor and partition counts; kept even without members
    group@member     the member's properties, topics, partitions and target

A change is recorded before the member is sent it. After a restart the members continue, and every epoch is
later than any before.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from libramq.clock import MonotonicMs
from libramq.formats.document import Document
from libramq.groups.modern.assignors import UNIFORM
from libramq.groups.modern.group import ModernGroup
from libramq.groups.modern.member import REBALANCE_MS, ModernMember
from libramq.groups.modern.values import NO_PARTITIONS, Partition, Partitions

#: A character that group names cannot contain.
SEPARATOR: Final = "@"


class _Stored(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The base of the file's records."""


class SavedGroup(_Stored, frozen=True, kw_only=True):
    """A group. counts: the partitions of its topics; fitting: the topics that match each pattern."""

    epoch: int
    assignor: str = UNIFORM
    counts: dict[str, int] = {}
    fitting: dict[str, list[str]] = {}


class SavedMember(_Stored, frozen=True, kw_only=True):
    """A member. topics: the ones it names. assigned, revoking, target: partition numbers by topic."""

    epoch: int
    previous_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int = REBALANCE_MS
    topics: list[str] = []
    pattern: str = ""
    assignor: str | None = None
    assigned: dict[str, list[int]] = {}
    revoking: dict[str, list[int]] = {}
    target: dict[str, list[int]] = {}


class SavedEntry(_Stored, frozen=True, kw_only=True):
    """An entry of the file: either a group or a member."""

    group: SavedGroup | None = None
    member: SavedMember | None = None


class ModernGroupsFile(_Stored, frozen=True, kw_only=True):
    """The content of config/kafkaGroups.json: the entries by key."""

    entries: dict[str, SavedEntry] = {}


def member_key(group: str, member_id: str) -> str:
    """Return the key of a member's entry; a group's is its name."""
    return f"{group}{SEPARATOR}{member_id}"


def members_of(entries: Mapping[str, SavedEntry]) -> dict[str, dict[str, SavedMember]]:
    """Return the members of each group, by id."""
    found: dict[str, dict[str, SavedMember]] = {}
    for key, entry in entries.items():
        group, separator, member_id = key.partition(SEPARATOR)
        if separator and entry.member is not None:
            found.setdefault(group, {})[member_id] = entry.member
    return found


def saved_group(group: ModernGroup) -> SavedEntry:
    """Return a group's entry."""
    fitting = {pattern: sorted(topics) for pattern, topics in group.fitting.items()}
    return SavedEntry(
        group=SavedGroup(
            epoch=group.epoch, assignor=group.assignor, counts=dict(group.counts), fitting=fitting
        )
    )


def restored(saved: SavedGroup, members: Mapping[str, SavedMember], now_ms: MonotonicMs) -> ModernGroup:
    """Return a group that continues after a restart.

    A power cut may have lost the group's last record but kept a member's, so the highest epoch of all counts.
    """
    group = ModernGroup()
    group.fitting = {pattern: frozenset(topics) for pattern, topics in saved.fitting.items()}
    epochs = [each for member in members.values() for each in (member.epoch, member.previous_epoch)]
    found = _members(members, group.fitting)
    group.restore(max([saved.epoch, *epochs]), saved.assignor, saved.counts, found, now_ms)
    return group


def saved_member(group: ModernGroup, member_id: str) -> SavedEntry | None:
    """Return a member's entry; None if it is gone."""
    member = group.members.get(member_id)
    if member is None:
        return None
    return SavedEntry(
        member=SavedMember(
            epoch=member.epoch,
            previous_epoch=member.previous_epoch,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_ms=member.rebalance_ms,
            topics=sorted(member.named),
            pattern=member.pattern,
            assignor=member.assignor,
            assigned=_by_topic(member.assigned),
            revoking=_by_topic(member.revoking),
            target=_by_topic(group.target.get(member_id, NO_PARTITIONS)),
        )
    )


def _members(
    saved: Mapping[str, SavedMember], fitting: Mapping[str, frozenset[str]]
) -> Iterator[tuple[ModernMember, Partitions]]:
    """Yield the restored members with their targets."""
    for member_id, each in saved.items():
        member = ModernMember(member_id, each.instance_id)
        member.epoch, member.previous_epoch = each.epoch, each.previous_epoch
        member.rack_id, member.client_id, member.client_host = each.rack_id, each.client_id, each.client_host
        member.rebalance_ms, member.assignor = each.rebalance_ms, each.assignor
        member.named, member.pattern = frozenset(each.topics), each.pattern
        member.subscribe(fitting)
        member.assigned, member.revoking = _partitions(each.assigned), _partitions(each.revoking)
        yield member, _partitions(each.target)


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for each in sorted(partitions):
        topics.setdefault(each.topic, []).append(each.number)
    return topics


def _partitions(topics: Mapping[str, Iterable[int]]) -> Partitions:
    return frozenset(Partition(topic, index) for topic, indexes in topics.items() for index in indexes)
