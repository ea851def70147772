"""The effects of the push consumer's core: what its shell has to do.

A shell performs them in order and reports what came of each through the core's method named beside it.
`generation` goes back unchanged: an answer about a queue that was lost and taken again is not mixed up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from libramq.client.core.consumer_settings import PULL_BATCH_SIZE
from libramq.client.core.process_queue import Claim, Delivery
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import GroupJoinBody, GroupPollBody, QueueGrant
from libramq.remoting.body.heartbeat import HeartbeatData
from libramq.remoting.headers import GroupJoinHeader


@dataclass(frozen=True, slots=True)
class FetchRoutes:
    """Ask a name server about topics → `routes_fetched`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Tell a broker who we are → `heartbeat_answered`."""

    address: str
    data: HeartbeatData


@dataclass(frozen=True, slots=True)
class FetchConsumerList:
    """Ask a broker for the members of our group → `consumer_list_fetched`."""

    address: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueryOffset:
    """Ask what is committed → `committed_offset_answered`."""

    queue: MessageQueue
    generation: int
    address: str


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """Begin with a queue that the coordinator granted us, and ask what is committed → `opened`."""

    queue: MessageQueue
    generation: int
    address: str
    claim: Claim


@dataclass(frozen=True, slots=True)
class MaxOffset:
    """Ask where the queue ends → `start_offset_answered`."""

    queue: MessageQueue
    generation: int
    address: str


@dataclass(frozen=True, slots=True)
class SearchOffset:
    """Ask for the first message stored at or after a time → `start_offset_answered`."""

    queue: MessageQueue
    generation: int
    address: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask for messages from an offset on → `pulled`.

    claim: what the queue is open under in a coordinated group.
    It commits nothing on its way, as upstream's do: brokers of many threads let it overtake later commits.
    """

    queue: MessageQueue
    generation: int
    address: str
    offset: int
    count_max: int = PULL_BATCH_SIZE
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Have handlers run → `handled`."""

    deliveries: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Let other handlers run in the place of those that do not end."""

    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class SendBack:
    """Have a message delivered again later → `sent_back`. delay_level: see core/send_back.py."""

    delivery: Delivery
    message: MessageExt
    address: str
    delay_level: int = 0


@dataclass(frozen=True, slots=True)
class SendCopy:
    """The way round: send a copy to the group's retry topic → `copy_sent`. delay_level: as in a send-back."""

    delivery: Delivery
    message: MessageExt
    queue: MessageQueue
    address: str
    delay_level: int = 0


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """Commit → `committed`. claim: as in a pull."""

    queue: MessageQueue
    generation: int
    offset: int
    address: str
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class ReadOffset:
    """Look up in the local offset store how far we were → `committed_offset_answered`."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class StoreOffsets:
    """Write to the local offset store; what cannot be written is tried again with the next."""

    offsets: tuple[tuple[MessageQueue, int], ...]


@dataclass(frozen=True, slots=True)
class LockQueues:
    """Ask a broker for queues, each with its generation → `locks_answered`."""

    address: str
    queues: tuple[tuple[MessageQueue, int], ...]
    requested_ms: MonotonicMs


@dataclass(frozen=True, slots=True)
class UnlockQueues:
    """Give locks back."""

    address: str
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """Tell the listener about queues that are ours now."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Tell the listener about queues that are no longer ours; their handlers have ended, or time was up.

    → `revoke_heard`, when the settings say that somebody listens: until then the queues are not given away.
    """

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Tell the listener about queues that others have, or may have, before we could commit."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Tell the user what keeps messages from us. keeps_out: all of them, and until others do something."""

    error: LibraError
    keeps_out: bool


@dataclass(frozen=True, slots=True)
class Recovered:
    """Nothing keeps us out any more."""


@dataclass(frozen=True, slots=True)
class FindGroup:
    """Ask a broker for the coordinator of our group → `group_found`. number: of the question."""

    address: str
    number: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Become a member, or come back as one → `group_joined`. requested_ms: the lease counts from there."""

    address: str
    number: int
    timeout_ms: int
    requested_ms: MonotonicMs
    header: GroupJoinHeader
    body: GroupJoinBody


@dataclass(frozen=True, slots=True)
class PollGroup:
    """Tell the coordinator that we live, and ask for what is to be done → `group_polled`."""

    address: str
    number: int
    timeout_ms: int
    requested_ms: MonotonicMs
    member: str
    epoch: int
    body: GroupPollBody


@dataclass(frozen=True, slots=True)
class ReleaseQueues:
    """Tell the coordinator about queues that were let go. leaving: we stop.

    uncommitted: those of which more was handled than the broker knows.
    """

    address: str
    member: str
    queues: tuple[QueueGrant, ...]
    leaving: bool = False
    uncommitted: tuple[QueueGrant, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Stop being a member → `group_left`. queues: what was let go, drained and committed, just now."""

    address: str
    member: str
    reason: str
    queues: tuple[QueueGrant, ...] = ()


@dataclass(frozen=True, slots=True)
class Unregister:
    """Say goodbye to brokers → `unregistered`."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing more will come."""


Effect = (
    FetchRoutes
    | SendHeartbeat
    | FetchConsumerList
    | QueryOffset
    | OpenQueue
    | MaxOffset
    | SearchOffset
    | Pull
    | Deliver
    | GiveUp
    | SendBack
    | SendCopy
    | CommitOffset
    | ReadOffset
    | StoreOffsets
    | LockQueues
    | UnlockQueues
    | Assigned
    | Revoked
    | Lost
    | Trouble
    | Recovered
    | FindGroup
    | JoinGroup
    | PollGroup
    | ReleaseQueues
    | LeaveGroup
    | Unregister
    | Stopped
)
Effects = list[Effect]


def merged(effects: Sequence[Effect]) -> list[Effect]:
    """One call of the listener and one request a broker, not one a queue: the first takes in the others."""
    if len(effects) < 2:  # As after most events.
        return list(effects)
    places: dict[tuple[type, str], int] = {}
    found: list[Effect] = []
    for effect in effects:
        if not isinstance(effect, Assigned | Revoked | Lost | UnlockQueues):
            found.append(effect)
            continue
        key = (type(effect), effect.address if isinstance(effect, UnlockQueues) else "")
        place = places.setdefault(key, len(found))
        if place == len(found):
            found.append(effect)
        else:
            first = found[place]
            assert isinstance(first, Assigned | Revoked | Lost | UnlockQueues)
            found[place] = replace(first, queues=first.queues + effect.queues)
    return found
