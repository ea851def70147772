"""The target assignment: which member each queue is meant for, as the group's strategy has it.

A strategy may be a user's own. One that raises, or gives a queue twice or to nobody we know, is logged, and
balanced_sticky decides instead: a group is never without a target.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from libramq.balance import Assignment, Group, Member, Strategy, strategy_named
from libramq.errors import ConfigError
from libramq.groups.coordinator.group_state import MemberProfile
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

DEFAULT_STRATEGY: Final = "balanced_sticky"
#: Capacities that are all the same change nothing.
BALANCED_STICKY: Final = strategy_named(DEFAULT_STRATEGY, by_capacity=True)

#: Strategies whose first step holds queues back until their holder has let go: a coordinator sees to that
#: itself, and would wait for a second step that nobody asks for.
IN_TWO_STEPS: Final[Mapping[str, str]] = {"cooperative-sticky": "sticky"}

Target = dict[MessageQueue, str]
#: What a member holds, in the order in which it had better keep it.
Owned = Callable[[str], Sequence[MessageQueue]]


class StrategyChoice:
    """The strategy that a group's members ask for: most of them; of several, the one that was named first.

    name: as it was chosen last, known or not; None before the first time.
    """

    def __init__(self, group: str, profiles: Sequence[MemberProfile] = ()) -> None:
        self._group = group
        self._unknown: str | None = None
        self.name = _wanted(profiles)

    def choose(self, profiles: Sequence[MemberProfile]) -> tuple[Strategy, bool]:
        """The strategy to go by, and whether it is another than before; a name not known is logged once."""
        name = _wanted(profiles) or self.name or DEFAULT_STRATEGY
        strategy = _find(name)
        is_another = self.name not in (name, None)
        if strategy is None and name != self._unknown:
            log.warning("unknown strategy, using balanced_sticky", group=self._group, strategy=name)
            self._unknown = name
        self.name = name
        return strategy or BALANCED_STICKY, is_another


def _wanted(profiles: Sequence[MemberProfile]) -> str | None:
    named = Counter(profile.strategy for profile in profiles)
    return named.most_common(1)[0][0] if named else None


def _find(name: str) -> Strategy | None:
    """The strategy of that name; None where there is none, or where it needs what only a client knows."""
    if name == DEFAULT_STRATEGY:
        return BALANCED_STICKY
    try:
        return strategy_named(IN_TWO_STEPS.get(name, name))
    except ConfigError:
        return None


def target_assignment(
    group: str,
    strategy: Strategy,
    profiles: Sequence[MemberProfile],
    queues: Sequence[MessageQueue],
    owned: Owned,
) -> Target:
    """Whom each queue is meant for, by member; queues that nobody may have are left out."""
    ids = _strategy_ids(profiles)
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
        except Exception:  # Whatever a user's own code may raise.
            log.warning("strategy failed, using balanced_sticky", group=group, exc_info=True)
    return _checked(BALANCED_STICKY.assign(balance_group), ids, queues)


def fewest_moves(
    group: str,
    profiles: Sequence[MemberProfile],
    queues: Sequence[MessageQueue],
    holders: Mapping[MessageQueue, str],
) -> int:
    """How many queues must get another holder, at best, so that the group is balanced."""
    owned: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue, member in holders.items():
        owned[member].append(queue)
    target = target_assignment(group, BALANCED_STICKY, profiles, queues, owned.__getitem__)
    return sum(holders.get(queue) != member for queue, member in target.items())


def _strategy_ids(profiles: Sequence[MemberProfile]) -> dict[str, MemberProfile]:
    """Members by what strategies know them by: their client ids, where these are their own."""
    counted = Counter(profile.client_id for profile in profiles)
    ids = {}
    for profile in profiles:
        is_own = counted[profile.client_id] == 1
        ids[profile.client_id if is_own else f"{profile.client_id}#{profile.member}"] = profile
    return ids


def _checked(
    assignment: Assignment, profiles: Mapping[str, MemberProfile], queues: Sequence[MessageQueue]
) -> Target:
    """The assignment by queue; raises ConfigError where it makes no sense."""
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
