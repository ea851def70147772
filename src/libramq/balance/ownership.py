"""The ownership: who holds which queue before anything is decided, where members' own words agree.

Of several who claim a queue the one with the highest epoch is right; claims of the same epoch cancel out
(Kafka's AbstractStickyAssignor takes them for a fault too).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from libramq.balance.group import Group
from libramq.message.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Ownership:
    """owners: the place of its holder among the members, by queue.

    disputed: some queue was claimed twice. contested: those that nobody holds because equals claim them.
    """

    owners: Mapping[MessageQueue, int]
    disputed: bool = False
    contested: frozenset[MessageQueue] = frozenset()


def ownership(group: Group) -> Ownership:
    """Settle who holds what; subscriptions and existing queues are not looked at."""
    owners: dict[MessageQueue, int] = {}
    contested: set[MessageQueue] = set()
    claims = 0
    for place, member in enumerate(group.members):
        owners |= dict.fromkeys(member.owned, place)
        claims += len(member.owned)
    if claims == len(owners):
        return Ownership(owners)
    owners.clear()
    for place, member in enumerate(group.members):
        for queue in dict.fromkeys(member.owned):
            rival = owners.setdefault(queue, place)
            if rival == place:
                continue
            if member.epoch > group.members[rival].epoch:
                owners[queue] = place
                contested.discard(queue)
            elif member.epoch == group.members[rival].epoch:
                contested.add(queue)
    for queue in contested:
        del owners[queue]
    return Ownership(owners, True, frozenset(contested))


def holdings(group: Group) -> list[Sequence[MessageQueue]]:
    """Return the queues each member may keep: those that exist, that it subscribes to and owns alone.

    As a rule everything is in order, and nothing is looked at queue by queue.
    """
    known = ownership(group)
    existing = set(chain.from_iterable(group.queues.values()))
    strange = known.disputed or not known.owners.keys() <= existing
    everything: dict[frozenset[str], bool] = {}
    kept: list[Sequence[MessageQueue]] = []
    for place, member in enumerate(group.members):
        subscribed = everything.get(member.topics)
        if subscribed is None:
            subscribed = everything[member.topics] = member.topics >= group.queues.keys()
        owned = member.owned
        if strange:
            owned = [q for q in dict.fromkeys(member.owned) if q in existing and known.owners.get(q) == place]
        kept.append(owned if subscribed else [queue for queue in owned if queue[0] in member.topics])
    return kept
