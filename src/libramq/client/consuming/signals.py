"""The signals: what one part of a consumer's core asks of another.

A part returns them beside its effects; `PushConsumerCore` passes them on before it returns to its shell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from libramq.client.consuming import effects as fx
from libramq.client.consuming.effects import Effect, Effects
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.errors import FilterRefused, LibraError, NoPermission
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import QueueGrant


@dataclass(frozen=True, slots=True)
class RebalanceSoon:
    """A queue could not be taken, or one that was given up could be taken again: repeat the round soon."""


@dataclass(frozen=True, slots=True)
class RebalanceNow:
    """We begin to allocate for ourselves."""


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """A round has taken or given up queues: brokers are to hear of it."""


@dataclass(frozen=True, slots=True)
class LockWanted:
    """Lock a queue with the next request to its broker."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class Unlocked:
    """A queue is being unlocked at a broker, which may not receive it."""

    queue: MessageQueue
    address: str


@dataclass(frozen=True, slots=True)
class QueueReleased:
    """A revoked queue is no longer ours: report it to the coordinator.

    is_committed: whether its broker has acknowledged all that we handled.
    """

    grant: QueueGrant
    is_committed: bool


@dataclass(frozen=True, slots=True)
class Overrun:
    """Handlers have passed max_processing_ms, and their queues are about to be granted to others."""

    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class BrokerMissing:
    """The routes lack a broker that we need: look for it."""


@dataclass(frozen=True, slots=True)
class SubscriptionUnknown:
    """A broker does not know our subscription: send it a heartbeat."""

    address: str


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """Our lease has ended, or is renewed after that: the brokers hear of it, for operators."""

    ended: bool


Signal = (
    RebalanceSoon
    | RebalanceNow
    | AssignmentChanged
    | LockWanted
    | Unlocked
    | QueueReleased
    | Overrun
    | BrokerMissing
    | SubscriptionUnknown
    | LeaseChanged
)
#: What a part returns: effects for the shell, signals for other parts.
Steps = list[Effect | Signal]


class Troubles:
    """Problems that stop deliveries to a consumer, by subject; each is reported to the user once.

    Some keep it out of its group until somebody else acts: another client has its name, or a broker refuses
    it. From those it recovers by itself when they are over.
    """

    def __init__(self) -> None:
        #: By subject: whether it keeps the consumer out.
        self.present: dict[str, bool] = {}
        #: For the user.
        self.reports: Effects = []

    def begin(self, about: str, error: LibraError, *, keeps_out: bool = False) -> None:
        """Report a trouble, unless it is known already."""
        if about not in self.present:
            self.present[about] = keeps_out
            self.reports.append(fx.Trouble(error, keeps_out))

    def over(self, about: str) -> bool:
        """Clear a trouble; return whether there was one."""
        if about not in self.present:
            return False
        if self.present.pop(about) and not any(self.present.values()):
            self.reports.append(fx.Recovered())
        return True

    def answered(self, about: str, outcome: object, *, keeps_out: bool = False) -> None:
        """Handle a result: a denied request or filter is a trouble, until another is not denied."""
        if isinstance(outcome, NoPermission | FilterRefused):
            self.begin(about, outcome, keeps_out=keeps_out)
        elif not isinstance(outcome, LibraError):
            self.over(about)

    def take(self) -> Effects:
        """Return the reports for the user."""
        effects, self.reports = self.reports, []
        return effects
