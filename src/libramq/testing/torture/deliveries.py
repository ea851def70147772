"""The deliveries of torture: messages that a broker has to deliver later, once or never.

commit acknowledged, timer accepted        ─► delivered, and not before its time
commit or timer sent, and not acknowledged ─► delivered or not; a commit twice, if the slave was promoted
half message open or rolled back           ─► never delivered
"""

from collections.abc import Iterable
from typing import Final

from libramq.testing.torture.bodies import Identity
from libramq.testing.torture.ledger import shown

NEVER: Final = None


class Deliveries:
    """The promises about a topic's messages."""

    def __init__(self, name: str) -> None:
        self.promised_count = self.twice_count = 0
        self._name = name
        #: The wall time from which on it may be delivered; NEVER: not at all.
        self._from_ms: dict[Identity, int | None] = {}
        self._promised: set[Identity] = set()
        self._missing: set[Identity] = set()
        self._repeatable: set[Identity] = set()
        self._delivered: set[Identity] = set()

    def withhold(self, identity: Identity) -> None:
        """Record that a message must not be delivered: its transaction is open, or is rolled back."""
        self._from_ms[identity] = NEVER

    def allow(self, identity: Identity, from_ms: int = 0) -> None:
        """Record that a message may be delivered from a time on: its commit was requested, or it was sent."""
        self._from_ms[identity] = from_ms

    def promise(self, identity: Identity) -> None:
        """Record that a message has to be delivered: the broker has acknowledged it."""
        self.promised_count += 1
        self._promised.add(identity)
        if identity not in self._delivered:
            self._missing.add(identity)

    def delivered(self, identity: Identity | None, stored_ms: int) -> list[str]:
        """Record that a message was read; return the violation, if it is one."""
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
        """Record that the slave is the master now: all that it has will be read from the beginning.

        Deliveries that were not promised may be gone. repeatable: the messages whose commits have no
        acknowledgement; a slave that has such a message without the end of its transaction delivers it again.
        """
        self._repeatable.update(repeatable)
        self._missing = set(self._promised)
        self._delivered.clear()
        self.twice_count = 0

    @property
    def is_missing_any(self) -> bool:
        """Return whether promised messages were not delivered yet."""
        return bool(self._missing)

    def missing(self) -> list[str]:
        """Return the violations: what was promised, and not delivered in all the time it had."""
        return shown([
            f"{self._name}: number {each.serial} of producer {each.producer} was acknowledged and is lost"
            for each in sorted(self._missing)
        ])  # fmt: skip
