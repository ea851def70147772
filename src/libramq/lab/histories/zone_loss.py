"""Zone loss: all members of a zone crash at once, and return in waves; then another zone's.

Brokers stay: this is about who consumes, not about what is stored.
"""

from typing import Final

from libramq.lab.crew import ZONES, Crew, shares, zone_name, zone_of
from libramq.lab.history import Departure, History, Step

#: Ours: two zones one after the other; a third would show nothing new.
LOSSES: Final = 2
WAVES: Final = 3
DOWN_MS: Final = 600_000
WAVE_MS: Final = 30_000


def zone_loss(group: str, crew: Crew) -> History:
    """Members return on their machines; a group that is in one zone only loses none."""
    members = crew.hire(crew.size.members)
    first = dict.fromkeys(members, crew.all_topics)
    steps: list[Step] = []
    at_ms = 0
    for zone in crew.random.sample(range(ZONES), LOSSES):
        lost = [member for member in members if zone_of(member) == zone_name(zone)]
        if not lost or len(lost) == len(members):
            continue
        at_ms += DOWN_MS
        gone = dict.fromkeys(lost, Departure.LOST)
        steps.append(Step(at_ms=at_ms, what=f"{zone_name(zone)} is lost: {len(lost)}", gone=gone))
        members = [member for member in members if member not in gone]
        at_ms += DOWN_MS
        done = 0
        for count in shares(len(lost), WAVES):
            back = [crew.restart(member) for member in lost[done : done + count]]
            done += count
            joined = dict.fromkeys(back, crew.all_topics)
            steps.append(Step(at_ms=at_ms, what=f"{count} come back", joined=joined))
            members += back
            at_ms += WAVE_MS
    return History(group=group, kind="zone_loss", queues=crew.queues(), members=first, steps=steps)
