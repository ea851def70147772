"""The rolling deploy: a new version replaces all members, a part of them at a time.

    wave: its members stop ─► as many new ones join ─► the next wave

Clean stops, as Kubernetes' SIGTERM makes them; the new pods have other addresses.
"""

from typing import Final

from libramq.lab.crew import Crew, shares
from libramq.lab.history import Departure, History, Step

#: Ours: small groups go one by one; of larger ones an eighth, less than Kubernetes' 25 % (maxUnavailable).
WAVES: Final = 8
#: Ours: until a new pod is ready.
START_MS: Final = 20_000
#: Ours: until the next wave.
PAUSE_MS: Final = 10_000


def rolling_deploy(group: str, crew: Crew) -> History:
    """Replace every member."""
    members = crew.hire(crew.size.members)
    steps: list[Step] = []
    at_ms = done = 0
    for count in shares(len(members), WAVES):
        old = members[done : done + count]
        done += count
        at_ms += PAUSE_MS
        steps.append(
            Step(at_ms=at_ms, what=f"{count} stop", gone=dict.fromkeys(old, Departure.LEFT)),
        )
        at_ms += START_MS
        steps.append(
            Step(at_ms=at_ms, what=f"{count} join", joined=dict.fromkeys(crew.hire(count), crew.all_topics))
        )
    return History(
        group=group,
        kind="rolling_deploy",
        queues=crew.queues(),
        members=dict.fromkeys(members, crew.all_topics),
        steps=steps,
    )
