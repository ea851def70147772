"""The timed events of a push consumer, each with its own deadline."""

from dataclasses import dataclass

from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.message.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class RoutesDue:
    """Fetch the routes again."""


@dataclass(frozen=True, slots=True)
class HeartbeatDue:
    """Send a heartbeat to every broker."""


@dataclass(frozen=True, slots=True)
class ReconnectDue:
    """Try a silent broker again."""

    address: str


@dataclass(frozen=True, slots=True)
class PersistDue:
    """Commit changed offsets."""


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """Check for handlers that exceed their time."""


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """Fetch the member list again."""


@dataclass(frozen=True, slots=True)
class OffsetQueryDue:
    """Query the committed offset: the last owner has had time to commit, or a pause is over."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class PullDue:
    """Try to pull again."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class DrainOver:
    """Stop waiting for running handlers of a queue that is no longer ours."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class RedeliverDue:
    """Pass messages to a handler again after their send-back failed."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class LocksDue:
    """Renew the locks of our queues."""


@dataclass(frozen=True, slots=True)
class LockDue:
    """Try to lock a queue again."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class SuspendOver:
    """Continue a queue that was suspended after a failure."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class RevokeOver:
    """Stop waiting for the listener's hook for a revoked queue."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class MembershipDue:
    """Send the next request to the coordinator, or look it up again."""


@dataclass(frozen=True, slots=True)
class LeaseDue:
    """Look whether our lease has ended."""


@dataclass(frozen=True, slots=True)
class ReleaseDue:
    """Release queues that have waited to be released with others."""


@dataclass(frozen=True, slots=True)
class ProcessingDue:
    """Check for handlers that run too long."""


@dataclass(frozen=True, slots=True)
class StopDue:
    """Stop now: the stop timeout is over."""


Due = (
    RoutesDue
    | HeartbeatDue
    | ReconnectDue
    | PersistDue
    | DeadlineDue
    | RebalanceDue
    | OffsetQueryDue
    | PullDue
    | DrainOver
    | RedeliverDue
    | LocksDue
    | LockDue
    | SuspendOver
    | RevokeOver
    | MembershipDue
    | LeaseDue
    | ReleaseDue
    | ProcessingDue
    | StopDue
)
