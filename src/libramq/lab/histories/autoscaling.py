"""Autoscaling: a day of a group whose size follows its load: down to a third by night, up again by noon.

Whoever goes stops cleanly; the youngest go first, as a ReplicaSet of Kubernetes chooses.
"""

from math import cos, pi
from typing import Final

from libramq.lab.crew import Crew
from libramq.lab.history import Departure, History, Step

#: Ours: every two hours of a day.
STEPS: Final = 12
STEP_MS: Final = 7_200_000
#: Ours: of the members at noon.
LEAST_SHARE: Final = 1 / 3
#: Ours: what real load differs from the curve.
NOISE: Final = 0.06


def autoscaling(group: str, crew: Crew) -> History:
    """From noon to noon."""
    most = crew.size.members
    members = crew.hire(most)
    first = dict.fromkeys(members, crew.all_topics)
    steps: list[Step] = []
    for number in range(1, STEPS + 1):
        height = LEAST_SHARE + (1 - LEAST_SHARE) * (1 + cos(2 * pi * number / STEPS)) / 2
        wanted = round(most * (height + crew.random.uniform(-NOISE, NOISE)))
        wanted = min(most, max(1, wanted))
        at_ms = number * STEP_MS
        if wanted > len(members):
            new = crew.hire(wanted - len(members))
            members += new
            joined = dict.fromkeys(new, crew.all_topics)
            steps.append(Step(at_ms=at_ms, what=f"{len(new)} join", joined=joined))
        elif wanted < len(members):
            gone = dict.fromkeys(members[wanted:], Departure.LEFT)
            del members[wanted:]
            steps.append(Step(at_ms=at_ms, what=f"{len(gone)} stop", gone=gone))
    return History(group=group, kind="autoscaling", queues=crew.queues(), members=first, steps=steps)
