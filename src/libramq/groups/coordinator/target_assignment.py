"""The target assignment: chooses a group's strategy, and computes each queue's target member.

A strategy may be a user's own. If it raises, or assigns a queue twice or to an unknown member, the failure is
logged and balanced_sticky is used instead, so a group always has a target.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from libramq.balance import Assignment, Group, Member, Strategy, strategy_named
from libramq.balance.group import counts
from libramq.errors import ConfigError
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.limits import is_large
from libramq.groups.queue_holdings import Holding
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

DEFAULT_STRATEGY: Final = "balanced_sticky"
#: With equal capacities, by_capacity makes no difference.
BALANCED_STICKY: Final = strategy_named(DEFAULT_STRATEGY, by_capacity=True)

#: Strategies whose first step withholds queues until their holder has released them. A coordinator does that
#: itself, and would wait for a second step that never comes.
IN_TWO_STEPS: Final[Mapping[str, str]] = {"cooperative-sticky": "sticky"}

Target = dict[MessageQueue, str]
#: Returns a member's queues, in the order in which it should keep them.
Owned = Callable[[str], Sequence[MessageQueue]]


class StrategyChoice:
    """The strategy of a group: the one that most members name; in a tie, the one named first.

    name: the last chosen name, known or not; None before the first choice.
    """

    def __init__(self, group: str, profiles: Sequence[MemberProfile] = ()) -> None:
        self._group = group
        self._unknown: str | None = None
        self.name = _wanted(profiles)

    def choose(self, profiles: Sequence[MemberProfile]) -> tuple[Strategy, bool]:
        """Return the strategy, and whether it differs from the last one; an unknown name is logged once."""
        name = _wanted(profiles) or self.name or DEFAULT_STRATEGY
        is_another = self.name not in (name, None)
        self.name = name
        if name == DEFAULT_STRATEGY:
            return BALANCED_STICKY, is_another
        try:
            return strategy_named(IN_TWO_STEPS.get(name, name)), is_another
        except ConfigError:  # Or it needs data that only clients have.
            if name != self._unknown:
                log.warning("unknown strategy, using balanced_sticky", group=self._group, strategy=name)
                self._unknown = name
            return BALANCED_STICKY, is_another


def _wanted(profiles: Sequence[MemberProfile]) -> str | None:
    named = Counter(profile.strategy for profile in profiles)
    return named.most_common(1)[0][0] if named else None


def target_assignment(
    group: str,
    strategy: Strategy,
    profiles: Sequence[MemberProfile],
    queues: Sequence[MessageQueue],
    owned: Owned,
) -> Target:
    """Return each queue's target member; queues without a possible member are left out."""
    if strategy is BALANCED_STICKY and len(profiles) == 1:  # There is nothing to balance.
        (only,) = profiles
        return {queue: only.member for queue in queues if queue.topic in only.subscriptions}
    counted = Counter(profile.client_id for profile in profiles)
    # By the ids that strategies use: client ids where these are unique.
    ids = {
        each.client_id if counted[each.client_id] == 1 else f"{each.client_id}#{each.member}": each
        for each in profiles
    }
    members = [
        Member(
            client_id=client_id,
            topics=frozenset(profile.subscriptions),
            owned=owned(profile.member),
            instance_id=profile.instance,
            capacity=profile.capacity,
        )
        for client_id, profile in ids.items()
    ]
    balance_group = Group.of(members, queues)
    if strategy is not BALANCED_STICKY:
        try:
            return _checked(strategy.assign(balance_group), ids, queues)
        except Exception:  # A user's own code may raise anything.
            log.warning("strategy failed, using balanced_sticky", group=group, exc_info=True)
    return _checked(BALANCED_STICKY.assign(balance_group), ids, queues)


def fewest_moves(
    group: str,
    profiles: Sequence[MemberProfile],
    queues: Sequence[MessageQueue],
    holders: Mapping[MessageQueue, str],
) -> int:
    """Return the minimum number of queues that must move to balance the group."""
    owned: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue, member in holders.items():
        owned[member].append(queue)
    target = target_assignment(group, BALANCED_STICKY, profiles, queues, owned.__getitem__)
    return sum(holders.get(queue) != member for queue, member in target.items())


def _checked(
    assignment: Assignment, profiles: Mapping[str, MemberProfile], queues: Sequence[MessageQueue]
) -> Target:
    """Return the assignment by queue; raises ConfigError if it is invalid."""
    existing = set(queues)
    target: Target = {}
    for client_id, share in assignment.items():
        profile = profiles.get(client_id)
        for queue in share:
            if profile is None or queue.topic not in profile.subscriptions or queue not in existing:
                raise ConfigError(f"the strategy assigns {queue} to {client_id}, which may not have it")
            if queue in target:
                raise ConfigError(f"the strategy assigns {queue} twice")
            target[queue] = profile.member
    return target


class Made(NamedTuple):
    """A computed assignment. minimum: the fewest moves since the rebalance began; None if not counted."""

    target: Target
    minimum: int | None = None


class Assigning(NamedTuple):
    """The input of an assignment, a snapshot of a group; any thread may compute it.

    For a large group a thread computes the assignment (effect `Assign`) while the group continues; later
    changes cause the next assignment. queues: all that can be opened. existing: all that carry load. before:
    the holders when the rebalance began.
    """

    group: str
    strategy: Strategy
    profiles: Sequence[MemberProfile]
    queues: Sequence[MessageQueue]
    holdings: Mapping[MessageQueue, Holding]
    existing: Sequence[MessageQueue]
    before: Mapping[MessageQueue, str]

    @property
    def is_large(self) -> bool:
        """Return whether it takes more than some milliseconds."""
        return is_large((profile.subscriptions for profile in self.profiles), len(self.queues))

    def made(self) -> Made:
        """Compute the assignment; for a large group also the fewest moves, which takes as long again."""
        openable = set(self.queues)
        held = [item for item in self.holdings.items() if item[0] in openable]
        # Longest held first: if some of a member's queues must move, these stay.
        held.sort(key=lambda item: (item[1].granted_at_ms, item[1].epoch, item[0]))
        owned: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue, holding in held:
            owned[holding.member].append(queue)
        target = target_assignment(self.group, self.strategy, self.profiles, self.queues, owned.__getitem__)
        if not self.is_large:
            return Made(target)
        counted = [queue for queue in self.existing if counts(queue.topic)]
        return Made(target, fewest_moves(self.group, self.profiles, counted, self.before))
