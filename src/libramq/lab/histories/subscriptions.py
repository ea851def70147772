"""Different subscriptions: a third of the members reads all topics, a third one half, a third the last.

    a new version of the middle third, in waves: also subscribes to the topic after its half
    some who read one topic only join, and stop again

RocketMQ asks that all members of a group subscribe alike; groups in the middle of a deploy do not.
"""

from typing import Final

from libramq.lab.crew import Crew, shares
from libramq.lab.history import Departure, History, Step

TIERS: Final = 3
WAVES: Final = 4
WAVE_MS: Final = 30_000
#: Ours: who comes for one topic and goes: one for so many members.
EXTRA_EVERY: Final = 10


def subscriptions(group: str, crew: Crew) -> History:
    """Return at least two topics; members that change subscriptions are not restarted."""
    half = crew.topics[: max(1, len(crew.topics) // 2)]
    before, after = frozenset(half), frozenset(crew.topics[: len(half) + 1])
    last = frozenset(crew.topics[-1:])
    tiers = (crew.all_topics, before, last)
    members = {
        client_id: tiers[place % TIERS] for place, client_id in enumerate(crew.hire(crew.size.members))
    }
    middle = [client_id for client_id, topics in members.items() if topics == before]
    steps: list[Step] = []
    at_ms = done = 0
    for count in shares(len(middle), WAVES) if middle else []:
        at_ms += WAVE_MS
        changed = dict.fromkeys(middle[done : done + count], after)
        done += count
        steps.append(Step(at_ms=at_ms, what=f"{count} subscribe to one more", resubscribed=changed))
    extra = crew.hire(max(1, len(members) // EXTRA_EVERY))
    for number, topic in enumerate((crew.topics[0], crew.topics[-1])):
        at_ms += WAVE_MS
        some = extra[number::2]
        if some:
            joined = dict.fromkeys(some, frozenset({topic}))
            steps.append(Step(at_ms=at_ms, what=f"{len(some)} join for {topic}", joined=joined))
    at_ms += WAVE_MS
    gone = dict.fromkeys(extra, Departure.LEFT)
    steps.append(Step(at_ms=at_ms, what=f"{len(extra)} stop", gone=gone))
    return History(group=group, kind="subscriptions", queues=crew.queues(), members=members, steps=steps)
