"""The fence: tracks the member that may open a queue of this broker and the member that has opened it;
accepts and voids grants, doubts openings after a power cut, and refuses pulls, commits and openings (FENCED,
NOT_YET_GRANTED).

        grant      (member, epoch)   from the coordinator: the member that may open the queue; sent again
                                     after a restart
        opening    (member, epoch)   the member that did: only its pulls and commits are accepted; outlives
                                     the process; without a member: closed until a grant under a later epoch

Only an opening under a higher epoch replaces an opening. So a queue has one reader at any moment, even if a
coordinator is wrong or there are two of them.

When a topic or the group itself is removed, the group's epoch stays. The group's next coordinator must
continue above it, because otherwise members would take its grants for old ones. Claims before the last
opening are still refused, until a restart (`removed`).

`record` is called with every change of an opening before it takes effect (None: the opening is removed); if
it raises, nothing changes. A change of mode is recorded as well, but takes effect even if that fails: a
restarted broker continues in the recorded mode, because its coordinator may be unreachable. This module
writes nothing else. It is LibraMQ's own; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.fencing import (
    EPOCHS_AHEAD_MAX,
    MODE_CLIENT,
    MODE_EPOCHS,
    NO_ATTEMPTS,
    Attempts,
    Claim,
    FenceGrant,
    FenceReport,
)
from libramq.formats.document import Document
from libramq.logs import get_logger
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

#: A character that names of topics and groups cannot contain.
SEPARATOR: Final = "@"
#: Ours: this many openings of removed queues are kept, some 10 MB; the oldest are forgotten first.
OPENINGS_MAX: Final = 25_000
#: Ours: as many as the group table holds (catalog.group_table.GROUPS_MAX); the oldest is forgotten first.
LEFT_BEHIND_MAX: Final = 25_000
#: A topic and a queue id, or LEFT_BEHIND or ALLOCATES.
Key = tuple[str, int]
#: The key of the epoch left behind by a group's removed queues.
LEFT_BEHIND: Final = ("", -1)
#: The key of an entry that exists while the group's mode is MODE_CLIENT.
ALLOCATES: Final = ("", -2)
#: The opening of an unopened queue; every epoch is above it.
NOBODY: Final = Claim("", 0)


class Opening(Document, frozen=True, kw_only=True):
    """An entry of the file; a group's own entries have no member."""

    member: str
    epoch: int


class FencesFile(Document, frozen=True, kw_only=True):
    """The content of config/groupFences.json: openings by "topic@group@queue id", and each group's own state.

        orders@G@3   the member that has opened queue 3 of orders, and its epoch
              @G@-1  the epoch left behind by removed queues of G
              @G@-2  the epoch under which members of G began to allocate for themselves

    Topics have names, so entries without a topic belong to the group.
    """

    openings: dict[str, Opening] = {}


Record = Callable[[str, Opening | None], None]


@dataclass(slots=True)
class GroupFence:
    """One group's queues here. is_grant_complete: the coordinator has sent the owners of all of them.

    unconfirmed: queues whose readers must open them again. recovered_ends: the ends of these queues at the
    start that put them in doubt. void: queues whose grant was unused when a coordinator queried the fences;
    until they are granted again, their last reader may not be their owner. attempts: delivery attempts of
    former owners, passed on by the coordinator.
    """

    epoch: int = 0
    mode: str = MODE_EPOCHS
    is_grant_complete: bool = False
    grants: dict[Key, Claim] = field(default_factory=dict)
    openings: dict[Key, Claim] = field(default_factory=dict)
    unconfirmed: set[Key] = field(default_factory=set)
    recovered_ends: dict[Key, int] = field(default_factory=dict)
    void: set[Key] = field(default_factory=set)
    attempts: dict[Key, Attempts] = field(default_factory=dict)
    #: By queue: the opening and the newest connection of its commits. Not saved, because no connection
    #: outlives the process.
    committed_over: dict[Key, tuple[Claim, int]] = field(default_factory=dict)


class Fences:
    """The fences of all coordinated groups at one broker."""

    def __init__(self, broker_name: str, *, record: Record = lambda *_: None) -> None:
        self._broker_name = broker_name
        self._record = record
        self._groups: dict[str, GroupFence] = {}
        self._left_behind: dict[str, int] = {}
        self.removed = RemovedOpenings()

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def mode(self, group: str) -> str | None:
        """Return the group's last received mode; None for a group without a fence."""
        fence = self._groups.get(group)
        return fence.mode if fence is not None else None

    def goes_by_epochs(self, group: str) -> bool:
        """Return whether the group's coordinator assigns its queues, by the last received mode."""
        return self.mode(group) == MODE_EPOCHS

    def epoch(self, group: str) -> int:
        """Return the highest epoch of the group seen here; 0 if none."""
        fence = self._groups.get(group)
        return fence.epoch if fence is not None else self._left_behind.get(group, 0)

    def readers(self, group: str) -> dict[MessageQueue, str]:
        """Return the members that have queues open."""
        return {queue: claim.member for queue, claim in self.claims(group).items()}

    def openings(self, group: str) -> dict[MessageQueue, bool]:
        """Return the open or granted queues, and whether each is open under its last grant; no retry topics.

        A queue without a grant, as after a restart, counts as open to its former reader.
        """
        fence = self._groups.get(group)
        if fence is None:
            return {}
        found = {
            key: fence.grants.get(key, claim) == claim
            for key, claim in fence.openings.items()
            if claim.member
        }
        found = {key: fence.openings.get(key) == claim for key, claim in fence.grants.items()} | found
        found |= dict.fromkeys(fence.void, False)
        return {
            MessageQueue(topic, self._broker_name, queue_id): is_open
            for (topic, queue_id), is_open in found.items()
            if not topic.startswith(RETRY_PREFIX)
        }

    def claims(self, group: str) -> dict[MessageQueue, Claim]:
        """Return the claims under which queues are open."""
        fence = self._groups.get(group)
        openings = fence.openings if fence is not None else {}
        return {
            MessageQueue(topic, self._broker_name, queue_id): claim
            for (topic, queue_id), claim in openings.items()
            if claim.member
        }

    # Grants of the coordinator.

    def grant(self, grant: FenceGrant) -> int:
        """Apply a coordinator's grant, unless a later one was received.

        Returns the highest epoch seen; if it is above the grant's, nothing was applied. A higher epoch is
        also returned if a queue is open under a later epoch than its grant: the coordinator does not know
        that, and must query the fences. Raises BrokerError for implausible epochs.
        """
        known, highest = self.epoch(grant.group), grant.highest_epoch
        if highest > known + EPOCHS_AHEAD_MAX:  # It would leave hardly any higher epochs.
            log.warning("implausible epoch in a grant", group=grant.group, epoch=highest, known=known)
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"epoch {highest} of group {grant.group} is implausible: {known} is the highest known here",
            )
        fence = self._fence(grant.group)
        if grant.epoch < fence.epoch:
            return fence.epoch
        grants = {
            (queue.topic, queue.queue_id): claim
            for queue, claim in grant.claims.items()
            if queue.broker_name == self._broker_name
        }
        for key, claim in grants.items():
            opening = fence.openings.get(key, NOBODY)
            if claim.epoch <= opening.epoch and claim != opening:
                log.warning(
                    "grant ignored: the queue is open under a later epoch",
                    group=grant.group,
                    grant=claim,
                    open=opening,
                )
                return grant.epoch + 1
        if grant.mode != fence.mode:
            self._record_mode(grant)
        fence.epoch, fence.mode = grant.epoch, grant.mode
        if grant.complete:
            fence.grants.clear()
            fence.void.clear()
            fence.attempts.clear()
            fence.is_grant_complete = True
        fence.grants |= grants
        fence.void -= grants.keys()
        for key in grants:
            fence.attempts.pop(key, None)
        for queue, attempts in grant.attempts.items():
            fence.attempts[queue.topic, queue.queue_id] = attempts
        return fence.epoch

    def _record_mode(self, grant: FenceGrant) -> None:
        """Record a change of mode, for the time between a restart and the coordinator's next grant.

        It takes effect even on a full disk, because members that allocate for themselves commit without
        epochs.
        """
        entry = Opening(member="", epoch=grant.epoch) if grant.mode == MODE_CLIENT else None
        try:
            self._record(_entry_name(grant.group, ALLOCATES), entry)
        except OSError as error:
            log.warning("mode change not recorded", group=grant.group, mode=grant.mode, reason=str(error))

    def report(self, group: str) -> FenceReport:
        """Return the state for a new coordinator.

        Unused grants become void, because the new coordinator does not know them.
        """
        fence = self._groups.get(group)
        if fence is None:
            return FenceReport(epoch=self.epoch(group))
        used = {key: claim for key, claim in fence.grants.items() if fence.openings.get(key) == claim}
        fence.void |= fence.grants.keys() - used.keys()
        fence.grants, fence.is_grant_complete = used, False
        return FenceReport(
            epoch=fence.epoch,
            openings={
                MessageQueue(topic, self._broker_name, queue_id): claim
                for (topic, queue_id), claim in fence.openings.items()
            },
        )

    # Requests of members.

    def open(self, group: str, topic: str, queue_id: int, claim: Claim) -> Claim | None:
        """Open a queue for a member; return the former reader, or None if nothing changed.

        Raises NotYetGranted or Fenced; exceptions of `record` propagate.
        """
        fence = self._groups.get(group)
        if fence is None:
            raise _not_yet_granted(group, topic, queue_id, claim, NOBODY)
        key = (topic, queue_id)
        opening, grant = fence.openings.get(key), fence.grants.get(key)
        if grant is None:
            if claim == opening and claim.member:
                fence.unconfirmed.discard(key)
                return None
            is_behind = opening is not None and claim.epoch <= opening.epoch
            # The grant may be under way.
            if not is_behind and (claim.epoch >= fence.epoch or not fence.is_grant_complete):
                raise _not_yet_granted(group, topic, queue_id, claim, opening or NOBODY)
            raise _fenced(group, topic, queue_id, claim, opening or NOBODY)
        if claim != grant:
            refuse = _not_yet_granted if claim.epoch > grant.epoch else _fenced
            raise refuse(group, topic, queue_id, claim, grant)
        if claim == opening:
            fence.unconfirmed.discard(key)
            return None
        assert opening is None or claim.epoch > opening.epoch, "a grant older than an opening was applied"
        removed = self.removed.last(group, key)
        if opening is None and claim.epoch <= removed.epoch and claim != removed:
            raise _fenced(group, topic, queue_id, claim, removed)  # Its coordinator cannot know that.
        self._record(_entry_name(group, key), Opening(member=claim.member, epoch=claim.epoch))
        fence.openings[key] = claim
        if key not in fence.unconfirmed:  # Otherwise the member may repeat an unanswered opening.
            fence.recovered_ends.pop(key, None)
        fence.unconfirmed.discard(key)
        return opening or NOBODY

    def recovered_end(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a queue's end at the start that put its present opening in doubt; None if none did."""
        fence = self._groups.get(group)
        return None if fence is None else fence.recovered_ends.get((topic, queue_id))

    def attempts(self, group: str, topic: str, queue_id: int, offset: int | None) -> int:
        """Return the number of earlier delivery attempts of the message at which a queue is opened."""
        fence = self._groups.get(group)
        known = NO_ATTEMPTS if fence is None else fence.attempts.get((topic, queue_id), NO_ATTEMPTS)
        return known.times if known.offset == offset else 0

    def forget_attempts(self, group: str, topic: str, queue_id: int) -> None:
        """Reset the count, because the queue is read from another offset."""
        fence = self._groups.get(group)
        if fence is not None:
            fence.attempts.pop((topic, queue_id), None)

    def check(self, group: str, topic: str, queue_id: int, member: str | None, epoch: int | None) -> None:
        """Check a member's pull, or any commit. Raises NotYetGranted, Fenced.

        Called for every commit: a group without fences costs one lookup.
        """
        fence = self._groups.get(group)
        if member is None:
            if fence is not None and fence.mode == MODE_EPOCHS:
                raise broker_error(
                    ResponseCode.FENCED, f"group {group} is under epochs, and this request names no member"
                )
            return
        opening = fence.openings.get((topic, queue_id), NOBODY) if fence is not None else NOBODY
        if member and opening.member == member and opening.epoch == epoch:  # Closed queues belong to "".
            if fence is not None and (topic, queue_id) in fence.unconfirmed:
                raise broker_error(
                    ResponseCode.NOT_YET_GRANTED,
                    f"{topic}-{queue_id} of group {group} is to be opened again: its broker was killed",
                )
            return
        claim = Claim(member, epoch or 0)
        refuse = _not_yet_granted if claim.epoch > opening.epoch else _fenced
        raise refuse(group, topic, queue_id, claim, opening)

    def is_superseded(self, group: str, topic: str, queue_id: int, connection_number: int) -> bool:
        """Return whether a commit that passed `check` is older than another commit of its opening.

        This is so if the member has committed over a later connection since: it has given up this connection,
        and requests still read from it are older than that commit, whatever the offsets. Over the same
        connection a member may go back.
        """
        fence, key = self._groups[group], (topic, queue_id)
        opening = fence.openings[key]
        known = fence.committed_over.get(key)
        if known is not None and known[1] > connection_number and known[0] == opening:
            return True
        fence.committed_over[key] = (opening, connection_number)
        return False

    def doubt_openings(self, end_of: Callable[[str, int], int]) -> None:
        """Make every reader open its queues again, because the log may have lost messages that were read.

        Later messages get the offsets of lost ones. A member that has read beyond a queue's present end
        restarts at the committed offset, which has been lowered to that end.
        """
        for fence in self._groups.values():
            fence.unconfirmed = {key for key, claim in fence.openings.items() if claim.member}
            fence.recovered_ends = {key: end_of(*key) for key in fence.unconfirmed}

    def close(self, group: str, topic: str, queue_id: int) -> bool:
        """Close a queue until it is granted under a later epoch, because its offset is about to be set.

        Returns whether the queue was open or granted.
        """
        fence, key = self._groups.get(group), (topic, queue_id)
        if fence is None:
            return False
        granted, opened = fence.grants.get(key, NOBODY), fence.openings.get(key, NOBODY)
        closed = Claim("", max(granted.epoch, opened.epoch))
        if closed.epoch and opened != closed:
            self._record(_entry_name(group, key), Opening(member="", epoch=closed.epoch))
            fence.openings[key] = closed
        was_granted = fence.grants.pop(key, None) is not None
        return was_granted or bool(opened.member)

    # Removals.

    def remove_group(self, group: str) -> None:
        """Remove a group, except for its epoch."""
        fence = self._groups.get(group)
        if fence is not None:
            self._leave_behind(group, fence.epoch)
            for key in fence.openings:
                self._record(_entry_name(group, key), None)
            if fence.mode == MODE_CLIENT:
                self._record(_entry_name(group, ALLOCATES), None)
            self.removed.keep(group, fence.openings)
            del self._groups[group]

    def remove_topic(self, topic: str) -> None:
        """Remove a topic's queues, except for their groups' epochs."""
        self.removed.remove_topic(topic)
        for group, fence in self._groups.items():
            opened = [key for key in fence.openings if key[0] == topic]
            if opened:
                self._leave_behind(group, fence.epoch)
            for key in opened:
                self._record(_entry_name(group, key), None)
                self.removed.keep(group, {key: Claim("", fence.openings.pop(key).epoch)})
                fence.recovered_ends.pop(key, None)
                fence.committed_over.pop(key, None)
            fence.grants = {key: claim for key, claim in fence.grants.items() if key[0] != topic}
            fence.void = {key for key in fence.void if key[0] != topic}
            fence.attempts = {key: known for key, known in fence.attempts.items() if key[0] != topic}

    def _leave_behind(self, group: str, epoch: int) -> None:
        if epoch <= self._left_behind.get(group, 0):
            return
        self._record(_entry_name(group, LEFT_BEHIND), Opening(member="", epoch=epoch))
        self._left_behind.pop(group, None)  # Move it to the end, as the newest.
        self._left_behind[group] = epoch
        if len(self._left_behind) > LEFT_BEHIND_MAX:
            oldest = next(iter(self._left_behind))
            self._record(_entry_name(oldest, LEFT_BEHIND), None)
            del self._left_behind[oldest]

    def _fence(self, group: str) -> GroupFence:
        """Return the group's fence; a new one takes over the epoch of its predecessor."""
        fence = self._groups.get(group)
        if fence is None:
            fence = self._groups[group] = GroupFence(epoch=self._left_behind.get(group, 0))
        return fence

    # Files.

    def apply(self, name: str, opening: Opening | None) -> None:
        """Apply a recorded change."""
        topic, group, queue_id = name.split(SEPARATOR)
        key = topic, int(queue_id)
        if key == LEFT_BEHIND:
            self._apply_left_behind(group, opening)
        elif key == ALLOCATES:
            self._apply_mode(group, opening)
        elif opening is not None:
            fence = self._fence(group)
            fence.openings[key] = Claim(opening.member, opening.epoch)
            fence.epoch = max(fence.epoch, opening.epoch)
        elif group in self._groups:
            self._groups[group].openings.pop(key, None)
            self._drop_unless_known(group, self._groups[group])

    def _apply_left_behind(self, group: str, opening: Opening | None) -> None:
        if opening is None:
            self._left_behind.pop(group, None)
            return
        self._left_behind[group] = opening.epoch
        fence = self._groups.get(group)
        if fence is not None:
            fence.epoch = max(fence.epoch, opening.epoch)

    def _apply_mode(self, group: str, entry: Opening | None) -> None:
        if entry is not None:
            fence = self._fence(group)
            fence.mode, fence.epoch = MODE_CLIENT, max(fence.epoch, entry.epoch)
        elif group in self._groups:
            self._groups[group].mode = MODE_EPOCHS
            self._drop_unless_known(group, self._groups[group])

    def _drop_unless_known(self, group: str, fence: GroupFence) -> None:
        """Drop a fence without an entry in the files, because its group was removed."""
        if not fence.openings and fence.mode == MODE_EPOCHS:
            del self._groups[group]

    def file(self) -> FencesFile:
        """Return the content of config/groupFences.json."""
        return FencesFile(
            openings={
                _entry_name(group, key): Opening(member=claim.member, epoch=claim.epoch)
                for group, fence in self._groups.items()
                for key, claim in fence.openings.items()
            }
            | {
                _entry_name(group, LEFT_BEHIND): Opening(member="", epoch=epoch)
                for group, epoch in self._left_behind.items()
            }
            | {
                _entry_name(group, ALLOCATES): Opening(member="", epoch=fence.epoch)
                for group, fence in self._groups.items()
                if fence.mode == MODE_CLIENT
            }
        )


class RemovedOpenings:
    """The last openings of queues whose group or topic was deleted, by group, topic and queue id.

    A group continues with its next heartbeat, and a member that reopens its queue has read it without a
    break. A recreated topic has other messages, so its queues count as closed under their last epochs.
    Earlier claims cannot open them, because their members lost the queue before the deletion.

    They are kept in memory only: after a restart members restart at their committed offsets.
    """

    def __init__(self) -> None:
        self._openings: dict[tuple[str, Key], Claim] = {}

    def keep(self, group: str, openings: Mapping[Key, Claim]) -> None:
        """Keep deleted openings of a group."""
        for key, claim in openings.items():
            self._openings.pop((group, key), None)
            self._openings[group, key] = claim
        while len(self._openings) > OPENINGS_MAX:
            del self._openings[next(iter(self._openings))]

    def last(self, group: str, key: Key) -> Claim:
        """Return the last opening of a queue that is not open."""
        return self._openings.get((group, key), NOBODY)

    def take(self, group: str, key: Key) -> Claim:
        """Return and forget the last opening of a queue that is reopened."""
        return self._openings.pop((group, key), NOBODY)

    def remove_topic(self, topic: str) -> None:
        """Note that no member has read the queues of a recreated topic."""
        for where, claim in self._openings.items():
            if where[1][0] == topic:
                self._openings[where] = Claim("", claim.epoch)


def _entry_name(group: str, key: Key) -> str:
    """Return the name of an entry."""
    return f"{key[0]}{SEPARATOR}{group}{SEPARATOR}{key[1]}"


def _not_yet_granted(group: str, topic: str, queue_id: int, claim: Claim, known: Claim) -> BrokerError:
    """Return the refusal of a claim that may be granted later."""
    return broker_error(
        ResponseCode.NOT_YET_GRANTED,
        f"{topic}-{queue_id} of group {group}: epoch {claim.epoch} is not known here yet;"
        f" the latest is {known.epoch}",
    )


def _fenced(group: str, topic: str, queue_id: int, claim: Claim, known: Claim) -> BrokerError:
    """Return the refusal of a claim whose queue has another owner."""
    return broker_error(
        ResponseCode.FENCED,
        f"{topic}-{queue_id} of group {group}: not owned by {claim.member} under epoch {claim.epoch};"
        f" its epoch is {known.epoch}",
    )
