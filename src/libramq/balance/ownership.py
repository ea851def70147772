"""The ownership: who holds which queue before a decision, and who is right where several members claim one.

If several members claim a queue, the one with the highest epoch is right; claims of the same epoch cancel out
(Kafka's AbstractStickyAssignor treats them as a fault too).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from libramq.balance.group import Group
from libramq.message.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Ownership:
    """owners: the index of each queue's holder among the members.

    disputed: some queue was claimed twice. contested: queues without a holder, since equal claims cancel out.
    """

    owners: Mapping[MessageQueue, int]
    disputed: bool = False
    contested: frozenset[MessageQueue] = frozenset()


def ownership(group: Group) -> Ownership:
    """Decide who holds what; subscriptions and the existence of queues are not checked."""
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

    Usually everything is consistent, and queues are not checked one by one.
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
