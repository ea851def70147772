"""The ledger of torture: everything a broker has acknowledged, and the violations found after a kill.

        send acknowledged, or seen by a consumer ─► the message stays at its offset for ever
        commit acknowledged                      ─► the group's offset never goes below it

An unacknowledged message may be stored or not, but no message is stored twice, and no offset is without one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

#: Ours: the largest body; bodies range from a line to a disk page.
BODY_BYTES_MAX: Final = 4_096
_FILLER: Final = bytes(range(256)) * (BODY_BYTES_MAX // 256 + 2)


class Identity(NamedTuple):
    """A message by its producer and the producer's serial number.

    Its body is `producer-serial-` and a filler derived from both.
    """

    producer: int
    serial: int


def body_of(identity: Identity) -> bytes:
    """Return the body of a message."""
    mixed = identity.serial * 7_919 + identity.producer * 104_729
    head = b"%d-%d-" % identity
    begin = mixed % 256
    return head + _FILLER[begin : begin + mixed % (BODY_BYTES_MAX - len(head))]


def identity_of(body: bytes) -> Identity | None:
    """Return the message of a body; None if the body is foreign or any byte is wrong."""
    parts = body.split(b"-", 2)
    if len(parts) < 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    identity = Identity(int(parts[0]), int(parts[1]))
    return identity if body_of(identity) == body else None


#: Ours: the number of violations of one kind that are described per queue.
SHOWN_MAX: Final = 3


class Ledger:
    """The acknowledged sends and commits, by queue number or by (group, queue number)."""

    def __init__(self) -> None:
        self.message_count = self.commit_count = 0
        self._messages: dict[int, dict[int, Identity]] = {}
        self._acknowledged: dict[int, set[int]] = {}
        self._places: dict[Identity, tuple[int, int]] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._requested: dict[tuple[str, int], int] = {}

    def acknowledged(self, queue_id: int, offset: int, identity: Identity) -> list[str]:
        """Record an acknowledged send; return the violation, if any."""
        self.message_count += 1
        self._acknowledged.setdefault(queue_id, set()).add(offset)
        return self._record(queue_id, offset, identity)

    def seen(self, queue_id: int, offset: int, identity: Identity | None) -> list[str]:
        """Record that a consumer saw a message, which makes it final; return the violation, if any."""
        if identity is None:
            return [f"queue {queue_id}: message {offset} has a body that nobody sent"]
        return self._record(queue_id, offset, identity)

    def requested(self, group: str, queue_id: int, offset: int) -> None:
        """Record a sent commit."""
        key = group, queue_id
        self._requested[key] = max(offset, self._requested.get(key, 0))

    def committed(self, group: str, queue_id: int, offset: int) -> None:
        """Record an acknowledged commit."""
        key = group, queue_id
        self.commit_count += 1
        self._committed[key] = max(offset, self._committed.get(key, 0))

    def check_messages(
        self, queue_id: int, found: Sequence[Identity | None], first: int, *, is_copy: bool = False
    ) -> list[str]:
        """Return the violations among the messages found in a queue from `first` on.

        is_copy: a slave's messages, which must include acknowledged ones but not all that consumers saw.
        """
        wrong = []
        for offset, identity in enumerate(found, first):
            wrong += self.seen(queue_id, offset, identity)
        end = first + len(found)
        expected = (self._acknowledged if is_copy else self._messages).get(queue_id, ())
        missing = sorted(offset for offset in expected if offset >= end)
        wrong += [
            f"queue {queue_id}: acknowledged message {offset} is lost; the queue has {first} to {end}"
            for offset in missing
        ]
        return shown(wrong)

    def check_commit(self, group: str, queue_id: int, found: int | None) -> list[str]:
        """Return the violation of a group's offset after a restart, which then counts as acknowledged."""
        key = group, queue_id
        at_least, at_most = self._committed.get(key), self._requested.get(key, 0)
        if at_least is not None and (found is None or found < at_least):
            return [f"group {group}, queue {queue_id}: acknowledged commit {at_least} went back to {found}"]
        if found is not None and found > at_most:
            return [f"group {group}, queue {queue_id}: commit {found} was never requested, only {at_most}"]
        if found is not None:
            self._committed[key] = found
        return []

    def note_replicated(self) -> None:
        """Record that both master and slave have every known message."""
        self._acknowledged = {queue_id: set(messages) for queue_id, messages in self._messages.items()}

    def note_promotion(self) -> None:
        """Record that the slave is the master now.

        Unacknowledged messages may be gone even if consumers saw them, and commits may be as old as the
        slave's last copy of them.
        """
        for queue_id, messages in self._messages.items():
            acknowledged = self._acknowledged.get(queue_id, ())
            self._messages[queue_id] = {at: each for at, each in messages.items() if at in acknowledged}
        self._places = {
            identity: (queue_id, offset)
            for queue_id, messages in self._messages.items()
            for offset, identity in messages.items()
        }
        self._committed.clear()

    def ends(self) -> Mapping[int, int]:
        """Return the offset after the last known message of each queue."""
        return {queue_id: max(messages) + 1 for queue_id, messages in self._messages.items() if messages}

    def commits(self) -> Mapping[tuple[str, int], int]:
        """Return the acknowledged offset of each group in each queue."""
        return dict(self._committed)

    def _record(self, queue_id: int, offset: int, identity: Identity) -> list[str]:
        messages = self._messages.setdefault(queue_id, {})
        known = messages.setdefault(offset, identity)
        if known != identity:
            return [f"queue {queue_id}: message {offset} was {_name(known)} and is {_name(identity)}"]
        place = self._places.setdefault(identity, (queue_id, offset))
        if place != (queue_id, offset):
            twice = f"as is message {place[1]} of queue {place[0]}"
            return [f"queue {queue_id}: message {offset} is {_name(identity)}, {twice}"]
        return []


def _name(identity: Identity) -> str:
    return f"number {identity.serial} of producer {identity.producer}"


def shown(wrong: list[str]) -> list[str]:
    """Return the violations, or the first few and the number of further ones."""
    more = len(wrong) - SHOWN_MAX
    return [*wrong[:SHOWN_MAX], f"and {more} more"] if more > 0 else wrong


NEVER: Final = None


class Deliveries:
    """The promises about a topic's messages.

    commit acknowledged, timer accepted   ─► delivered, and not before its time
    commit or timer sent, unacknowledged  ─► delivered or not; a commit twice if the slave was promoted
    half message open or rolled back      ─► never delivered
    """

    def __init__(self, name: str) -> None:
        self.promised_count = self.twice_count = 0
        self._name = name
        #: The wall time from which each message may be delivered; NEVER: not at all.
        self._from_ms: dict[Identity, int | None] = {}
        self._promised: set[Identity] = set()
        self._missing: set[Identity] = set()
        self._repeatable: set[Identity] = set()
        self._delivered: set[Identity] = set()

    def withhold(self, identity: Identity) -> None:
        """Record that a message must not be delivered: its transaction is open or rolled back."""
        self._from_ms[identity] = NEVER

    def allow(self, identity: Identity, from_ms: int = 0) -> None:
        """Record that a message may be delivered from a time on: its commit or the timer message was sent."""
        self._from_ms[identity] = from_ms

    def promise(self, identity: Identity) -> None:
        """Record that a message must be delivered because the broker acknowledged it."""
        self.promised_count += 1
        self._promised.add(identity)
        if identity not in self._delivered:
            self._missing.add(identity)

    def delivered(self, identity: Identity | None, stored_ms: int) -> list[str]:
        """Record a delivered message; return the violation, if any."""
        if identity is None:
            return [f"{self._name}: a message has a body that nobody sent"]
        text = f"{self._name}: number {identity.serial} of producer {identity.producer}"
        from_ms = self._from_ms.get(identity, NEVER)
        if from_ms is NEVER:
            return [f"{text} was delivered, and was never to be"]
        if stored_ms < from_ms:
            return [f"{text} was delivered {from_ms - stored_ms} ms early"]
        self._missing.discard(identity)
        if identity in self._delivered:
            self.twice_count += 1
            return [] if identity in self._repeatable else [f"{text} was delivered twice"]
        self._delivered.add(identity)
        return []

    def note_promotion(self, repeatable: Iterable[Identity]) -> None:
        """Record that the slave is the master now; all its messages will be read from the beginning.

        Deliveries that were not promised may be gone. repeatable: the messages with unacknowledged commits; a
        slave that lacks the end of such a transaction delivers the message again.
        """
        self._repeatable.update(repeatable)
        self._missing = set(self._promised)
        self._delivered.clear()
        self.twice_count = 0

    @property
    def is_missing_any(self) -> bool:
        """Return whether promised messages are still undelivered."""
        return bool(self._missing)

    def missing(self) -> list[str]:
        """Return a violation for each promised message that was not delivered in time."""
        return shown([
            f"{self._name}: number {each.serial} of producer {each.producer} was acknowledged and is lost"
            for each in sorted(self._missing)
        ])  # fmt: skip
