"""The replay: runs a history under an entrant and computes the cost of each step.

        step ─► remaining and new members ─► the strategy, again if it withholds queues ─► the moves

These are plain functions of a history, an entrant and costs. Only the strategy's time is measured, with a
clock that is passed in.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from libramq.balance import Group, Member, Strategy
from libramq.errors import ConfigError
from libramq.groups.coordinator.balance import COLLECT_MS
from libramq.lab.cost import HANDOVER, Costs
from libramq.lab.entrant import Allocator, Entrant
from libramq.lab.histories import History, Step, Topics
from libramq.message.queue import MessageQueue

#: Kafka's cooperative rebalance takes two; the limit stops a rule that withholds queues forever.
ROUNDS_MAX: Final = 3
NANOS_OF_MS: Final = 1_000_000

#: Nanoseconds of a monotonic clock.
Ticks = Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The outcome of one step.

    moved: queues with a new reader. unowned, doubled: queues assigned to no member, and to several. least,
    most: the smallest and the largest load of a member. still_ms: the total pause of all moved queues.
    idle_ms: the total time that unowned queues wait until the next step. repeated: messages delivered twice.
    rounds: calls of the strategy.
    """

    step: Step
    member_count: int
    moved: int
    unowned: int
    doubled: int
    least: int
    most: int
    still_ms: float
    worst_pause_ms: float
    idle_ms: int
    repeated: float
    rounds: int
    assignor_ms: float


def replay(history: History, entrant: Entrant, costs: Costs, ticks: Ticks) -> list[StepOutcome] | None:
    """Return the outcome of every step; None if the history lacks the strategy's input."""
    strategy = entrant.strategy_for(history)
    if strategy is None:
        return None
    group = _Group(history, entrant, strategy, ticks)
    group.balance()
    outcomes = []
    for number, step in enumerate(history.steps):
        following = history.steps[number + 1].at_ms if number + 1 < len(history.steps) else step.at_ms
        before, rounds_ms = group.owners, 0.0
        group.change(step)
        group.balance()
        if group.rounds > 1:
            rounds_ms = COLLECT_MS * (group.rounds - 1)
        moved: Counter[str] = Counter()
        for queue, client_id in group.owners.items():
            earlier = before.get(queue)
            if earlier is not None and earlier != client_id:
                moved[step.gone.get(earlier, HANDOVER)] += 1
        known = {cause: costs[entrant.allocator, cause] for cause in moved}
        pauses = {
            cause: cost.pause_ms + (rounds_ms if cause == HANDOVER else 0) for cause, cost in known.items()
        }
        unowned = history.queue_count - len(group.owners)
        loads = [len(share) for share in group.shares.values()]
        outcomes.append(
            StepOutcome(
                step=step,
                member_count=len(loads),
                moved=moved.total(),
                unowned=unowned,
                doubled=sum(loads) - len(group.owners),
                least=min(loads, default=0),
                most=max(loads, default=0),
                still_ms=float(sum(count * pauses[cause] for cause, count in moved.items())),
                worst_pause_ms=float(max(pauses.values(), default=0)),
                idle_ms=unowned * (following - step.at_ms),
                repeated=float(sum(count * known[cause].repeated for cause, count in moved.items())),
                rounds=group.rounds,
                assignor_ms=group.assignor_ns / NANOS_OF_MS,
            )
        )
    return outcomes


class _Group:
    """The group during its history. shares: queues by client id; owners: live members by queue."""

    def __init__(self, history: History, entrant: Entrant, strategy: Strategy, ticks: Ticks) -> None:
        self.history, self.entrant, self.strategy, self.ticks = history, entrant, strategy, ticks
        self.members: dict[str, Topics] = dict(sorted(history.members.items()))
        self.queues = frozenset(chain.from_iterable(history.queues.values()))
        self.shares: dict[str, Sequence[MessageQueue]] = {}
        self.owners: dict[MessageQueue, str] = {}
        self.rounds = self.assignor_ns = 0

    def change(self, step: Step) -> None:
        """Apply the departures and arrivals of a step."""
        members = {
            client_id: topics for client_id, topics in self.members.items() if client_id not in step.gone
        }
        self.members = dict(sorted({**members, **step.joined, **step.resubscribed}.items()))

    def balance(self) -> None:
        """Assign the queues again, repeatedly if the strategy withholds queues that other members hold."""
        shares: Mapping[str, Sequence[MessageQueue]] = {
            client_id: self.shares.get(client_id, ()) for client_id in self.members
        }
        self.owners = {}
        self.rounds = self.assignor_ns = 0
        is_done = not self.members
        while not is_done:
            held = set(chain.from_iterable(shares.values()))
            is_by_clients = self.entrant.allocator is Allocator.CLIENTS
            shares = self._by_clients() if is_by_clients else self._by_coordinator(shares)
            self.rounds += 1
            self.owners = {}
            for client_id in self.members:
                self.owners |= dict.fromkeys(shares.get(client_id, ()), client_id)
            is_done = (
                self.entrant.allocator is Allocator.CLIENTS
                or self.rounds == ROUNDS_MAX
                or held <= self.owners.keys()
            )
        self.shares = {client_id: shares.get(client_id, ()) for client_id in self.members}
        if not self.owners.keys() <= self.queues:
            raise StrategyFailed(f"the strategy {self.entrant.name} assigns queues that do not exist")

    def _by_coordinator(
        self, held: Mapping[str, Sequence[MessageQueue]]
    ) -> Mapping[str, Sequence[MessageQueue]]:
        """Assign all queues at once, knowing what every member holds."""
        wanted = frozenset().union(*set(self.members.values()))
        group = Group(
            members=[
                Member(client_id=client_id, topics=topics, owned=held[client_id])
                for client_id, topics in self.members.items()
            ],
            queues={topic: queues for topic, queues in self.history.queues.items() if topic in wanted},
        )
        return self._timed(group)

    def _by_clients(self) -> Mapping[str, Sequence[MessageQueue]]:
        """Assign topic by topic, as every client does for itself.

        Brokers list the ids of the whole group, so queues assigned to a member without a subscription to the
        topic go unread.
        """
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in self.members}
        for topic, queues in self.history.queues.items():
            assignment = self._timed(Group.of_topic(queues, self.members))
            for client_id, topics in self.members.items():
                if topic in topics:
                    shares[client_id] += assignment.get(client_id, ())
        return shares

    def _timed(self, group: Group) -> Mapping[str, Sequence[MessageQueue]]:
        began = self.ticks()
        try:
            assignment = self.strategy.assign(group)
        except Exception as error:  # A user's strategy may raise anything.
            raise StrategyFailed(
                f"the strategy {self.entrant.name} failed in a group of {len(self.members)} members "
                f"({self.history.kind}): {error!r}"
            ) from error
        self.assignor_ns += self.ticks() - began
        return assignment


class StrategyFailed(ConfigError):
    """A strategy raised an exception."""
