"""Flapping: a few members are killed again and again, and return each time, as with too little memory."""

from typing import Final

from libramq.lab.crew import Crew
from libramq.lab.history import Departure, History, Step

#: Ours: one member in this many flaps.
EVERY: Final = 25
ROUNDS: Final = 6
#: Ours: how likely each of them is killed in a round.
CHANCE: Final = 0.7
#: Ours: until a killed container runs again.
DOWN_MS: Final = 15_000
ROUND_MS: Final = 60_000


def flapping(group: str, crew: Crew) -> History:
    """In each round some of the same few members are killed and restarted."""
    members = crew.hire(crew.size.members)
    weak = crew.some(members, max(1, len(members) // EVERY))
    steps: list[Step] = []
    for number in range(1, ROUNDS + 1):
        places = [place for place in range(len(weak)) if crew.random.random() < CHANCE] or [0]
        at_ms = number * ROUND_MS
        gone = {weak[place]: Departure.CRASHED for place in places}
        for place in places:
            weak[place] = crew.restart(weak[place])
        back = {weak[place]: crew.all_topics for place in places}
        steps.append(Step(at_ms=at_ms, what=f"{len(gone)} are killed", gone=gone))
        steps.append(Step(at_ms=at_ms + DOWN_MS, what=f"{len(back)} come back", joined=back))
    return History(
        group=group,
        kind="flapping",
        queues=crew.queues(),
        members=dict.fromkeys(members, crew.all_topics),
        steps=steps,
    )
