"""The histories: a group's queues, its first members, and its changes step by step. Synthetic ones have any
size and five kinds of changes, and are reproducible from a seed.

        beginning ─► step: departures with their kinds, joins, changed subscriptions ─► step …

The changes of a step take effect together: the group is rebalanced after each step.

        client id    10.ZONE.x.y@NUMBER, a pod's random address, so that ids are not sorted by age
        broker       ZONE@broker-N, as MACHINE_ROOM reads it

A member restarted on its machine has the same address and another number, as in RocketMQ's ids, which contain
the process id (ClientConfig.buildMQClientId).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import cos, pi
from random import Random
from types import MappingProxyType
from typing import Final

from libramq.message.queue import MessageQueue

#: Ours: as many as in a region of a large cloud.
ZONES: Final = 3
#: A member's topics.
Topics = frozenset[str]


class Departure(StrEnum):
    """A member's way of leaving.

    LEFT: it stops gracefully. CRASHED: its process is killed, and its connection ends. LOST: it falls silent
    because its machine or network has failed, or it is frozen.
    """

    LEFT = "left"
    CRASHED = "crashed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The changes at one moment, by client id. at_ms: since the beginning. what: a description for people."""

    at_ms: int
    what: str
    gone: Mapping[str, Departure] = field(default_factory=dict)
    joined: Mapping[str, Topics] = field(default_factory=dict)
    resubscribed: Mapping[str, Topics] = field(default_factory=dict)


#: The first members, and the steps that follow.
Changes = tuple[Mapping[str, Topics], Sequence[Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One group's history. kind: shared by similar histories. queues: by topic, sorted within each.

    has_zones: the names of members and brokers contain their zones, as above.
    """

    group: str
    kind: str
    queues: Mapping[str, Sequence[MessageQueue]]
    members: Mapping[str, Topics]
    steps: Sequence[Step]
    has_zones: bool = True

    @property
    def queue_count(self) -> int:
        """Return the number of queues."""
        return sum(map(len, self.queues.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a group."""

    members: int
    queues: int
    topics: int


class Crew:
    """Makes the queues and members of one group."""

    def __init__(self, size: Size, random: Random) -> None:
        self.size = size
        self.random = random
        self.topics = tuple(f"Topic{number:02}" for number in range(min(size.topics, size.queues)))
        self.all_topics: Topics = frozenset(self.topics)
        self._count = 0

    def queues(self) -> dict[str, list[MessageQueue]]:
        """Return queues spread evenly over topics, and each topic's over one broker in every zone."""
        found: dict[str, list[MessageQueue]] = {}
        for place, topic in enumerate(self.topics):
            count = self.size.queues // len(self.topics) + (place < self.size.queues % len(self.topics))
            lots = (
                MessageQueue(topic, f"{zone_name(number % ZONES)}@broker-0", number // ZONES)
                for number in range(count)
            )
            found[topic] = sorted(lots)
        return found

    def hire(self, count: int) -> list[str]:
        """Return new members on new machines, in each zone in turn."""
        octet = partial(self.random.randrange, 256)
        return [self._id(f"10.{self._count % ZONES}.{octet()}.{octet()}") for _ in range(count)]

    def of_all(self, members: Iterable[str]) -> dict[str, Topics]:
        """Return members that subscribe to all topics."""
        return dict.fromkeys(members, self.all_topics)

    def restart(self, client_id: str) -> str:
        """Return the client id of the next process on the same machine."""
        return self._id(address_of(client_id))

    def _id(self, address: str) -> str:
        self._count += 1
        return f"{address}@{self._count}"


def address_of(client_id: str) -> str:
    """Return the address in a client id."""
    return client_id.partition("@")[0]


def zone_name(number: int) -> str:
    """Return a zone's name."""
    return f"zone-{number}"


def zone_of(client_id: str) -> str:
    """Return the zone in a client id of a crew."""
    return zone_name(int(client_id.split(".", 2)[1]))


def shares(count: int, parts: int) -> list[int]:
    """Divide a number into parts that are as even as possible and not empty."""
    parts = min(parts, count)
    return [count // parts + (place < count % parts) for place in range(parts)]


#: Ours: members of small groups are replaced one by one, those of larger groups an eighth at a time, which is
#: less than Kubernetes' 25 % (maxUnavailable).
DEPLOY_WAVES: Final = 8
#: Ours: the time until a new pod is ready.
POD_START_MS: Final = 20_000
#: Ours: the pause before the next wave.
DEPLOY_PAUSE_MS: Final = 10_000


def rolling_deploy(crew: Crew) -> Changes:
    """A new version replaces all members, some at a time.

        wave: its members stop ─► as many new ones join ─► the next wave

    Stops are graceful, as after Kubernetes' SIGTERM; the new pods have other addresses.
    """
    members = crew.hire(crew.size.members)
    steps: list[Step] = []
    at_ms = done = 0
    for count in shares(len(members), DEPLOY_WAVES):
        old = members[done : done + count]
        done += count
        at_ms += DEPLOY_PAUSE_MS
        steps.append(Step(at_ms=at_ms, what=f"{count} stop", gone=dict.fromkeys(old, Departure.LEFT)))
        at_ms += POD_START_MS
        steps.append(Step(at_ms=at_ms, what=f"{count} join", joined=crew.of_all(crew.hire(count))))
    return crew.of_all(members), steps


#: Ours: steps in a day.
DAY_STEPS: Final = 12
#: Ours: two hours.
DAY_STEP_MS: Final = 7_200_000
#: Ours: members at night, as a share of those at noon.
NIGHT_SHARE: Final = 1 / 3
#: Ours: the deviation of real load from the curve.
LOAD_NOISE: Final = 0.06


def autoscaling(crew: Crew) -> Changes:
    """The group's size follows its load for a day: down to a third by night, up again by noon.

    Members stop gracefully, the youngest first, as chosen by a Kubernetes ReplicaSet.
    """
    most = crew.size.members
    members = crew.hire(most)
    first = crew.of_all(members)
    steps: list[Step] = []
    for number in range(1, DAY_STEPS + 1):
        height = NIGHT_SHARE + (1 - NIGHT_SHARE) * (1 + cos(2 * pi * number / DAY_STEPS)) / 2
        wanted = round(most * (height + crew.random.uniform(-LOAD_NOISE, LOAD_NOISE)))
        wanted = min(most, max(1, wanted))
        at_ms = number * DAY_STEP_MS
        if wanted > len(members):
            new = crew.hire(wanted - len(members))
            members += new
            steps.append(Step(at_ms=at_ms, what=f"{len(new)} join", joined=crew.of_all(new)))
        elif wanted < len(members):
            gone = dict.fromkeys(members[wanted:], Departure.LEFT)
            del members[wanted:]
            steps.append(Step(at_ms=at_ms, what=f"{len(gone)} stop", gone=gone))
    return first, steps


#: Ours: one member in this many flaps.
WEAK_EVERY: Final = 25
FLAPS: Final = 6
#: Ours: the chance that a flapping member is killed in a round.
FLAP_CHANCE: Final = 0.7
#: Ours: the time until a killed container runs again.
RESTART_MS: Final = 15_000
FLAP_MS: Final = 60_000


def flapping(crew: Crew) -> Changes:
    """In each round, some of the same few members are killed and restarted, as with too little memory."""
    members = crew.hire(crew.size.members)
    weak = crew.random.sample(members, max(1, len(members) // WEAK_EVERY))
    steps: list[Step] = []
    for number in range(1, FLAPS + 1):
        places = [place for place in range(len(weak)) if crew.random.random() < FLAP_CHANCE] or [0]
        at_ms = number * FLAP_MS
        gone = {weak[place]: Departure.CRASHED for place in places}
        for place in places:
            weak[place] = crew.restart(weak[place])
        back = crew.of_all(weak[place] for place in places)
        steps.append(Step(at_ms=at_ms, what=f"{len(gone)} are killed", gone=gone))
        steps.append(Step(at_ms=at_ms + RESTART_MS, what=f"{len(back)} come back", joined=back))
    return crew.of_all(members), steps


#: Ours: two zones are lost, one after the other; a third would show nothing new.
ZONES_LOST: Final = 2
RETURN_WAVES: Final = 3
ZONE_DOWN_MS: Final = 600_000
RETURN_WAVE_MS: Final = 30_000


def zone_loss(crew: Crew) -> Changes:
    """All members in a zone crash at once and return in waves on their machines; then those in another zone.

    Brokers stay up: this history is about consumers, not about storage. A group within one zone loses nobody.
    """
    members = crew.hire(crew.size.members)
    first = crew.of_all(members)
    steps: list[Step] = []
    at_ms = 0
    for zone in crew.random.sample(range(ZONES), ZONES_LOST):
        lost = [member for member in members if zone_of(member) == zone_name(zone)]
        if not lost or len(lost) == len(members):
            continue
        at_ms += ZONE_DOWN_MS
        gone = dict.fromkeys(lost, Departure.LOST)
        steps.append(Step(at_ms=at_ms, what=f"{zone_name(zone)} is lost: {len(lost)}", gone=gone))
        members = [member for member in members if member not in gone]
        at_ms += ZONE_DOWN_MS
        done = 0
        for count in shares(len(lost), RETURN_WAVES):
            back = [crew.restart(member) for member in lost[done : done + count]]
            done += count
            steps.append(Step(at_ms=at_ms, what=f"{count} come back", joined=crew.of_all(back)))
            members += back
            at_ms += RETURN_WAVE_MS
    return first, steps


TIERS: Final = 3
SUBSCRIPTION_WAVES: Final = 4
SUBSCRIPTION_WAVE_MS: Final = 30_000
#: Ours: for this many members, one more member comes for one topic and leaves again.
EXTRA_EVERY: Final = 10


def subscriptions(crew: Crew) -> Changes:
    """A third of the members reads all topics, a third the first half of them, a third the last topic.

        a new version of the middle third, in waves: also subscribes to the topic after its half
        some members that read only one topic join and stop again

    RocketMQ requires equal subscriptions of all members of a group; during a deployment they differ.
    Members that change subscriptions are not restarted.
    """
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
    for count in shares(len(middle), SUBSCRIPTION_WAVES) if middle else []:
        at_ms += SUBSCRIPTION_WAVE_MS
        changed = dict.fromkeys(middle[done : done + count], after)
        done += count
        steps.append(Step(at_ms=at_ms, what=f"{count} subscribe to one more", resubscribed=changed))
    extra = crew.hire(max(1, len(members) // EXTRA_EVERY))
    for number, topic in enumerate((crew.topics[0], crew.topics[-1])):
        at_ms += SUBSCRIPTION_WAVE_MS
        some = extra[number::2]
        if some:
            joined = dict.fromkeys(some, frozenset({topic}))
            steps.append(Step(at_ms=at_ms, what=f"{len(some)} join for {topic}", joined=joined))
    at_ms += SUBSCRIPTION_WAVE_MS
    gone = dict.fromkeys(extra, Departure.LEFT)
    steps.append(Step(at_ms=at_ms, what=f"{len(extra)} stop", gone=gone))
    return members, steps


KINDS: Final[Mapping[str, Callable[[Crew], Changes]]] = MappingProxyType(
    {
        "rolling_deploy": rolling_deploy,
        "autoscaling": autoscaling,
        "flapping": flapping,
        "zone_loss": zone_loss,
        "subscriptions": subscriptions,
    }
)


def synthetic(kind: str, group: str, size: Size, seed: int) -> History:
    """Return the history of a group, which is the same for the same arguments on any machine."""
    crew = Crew(size, Random(f"{seed} {group} {kind}"))
    members, steps = KINDS[kind](crew)
    return History(group=group, kind=kind, queues=crew.queues(), members=members, steps=steps)
