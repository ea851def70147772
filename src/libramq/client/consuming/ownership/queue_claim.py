"""The claim of an owned queue, in a coordinated group: what the coordinator granted, and the fence opened."""

from dataclasses import dataclass, replace
from typing import Self

from libramq.fencing import Claim


@dataclass(frozen=True, slots=True)
class QueueClaim:
    """A claim; outside coordinated groups there is none.

    granted: under which to open the queue. opened: under which we pull and commit. opened_epoch: of the last
    opening, even if the fence has forgotten it since; 0 for none. tries: to open it since the grant.
    topic_start: where in the log the topic begins, by the last opening (`fencing.Opened`).
    """

    granted: Claim | None = None
    opened: Claim | None = None
    opened_epoch: int = 0
    tries: int = 0
    topic_start: int = 0

    @property
    def is_open(self) -> bool:
        """Return whether its fence lets us commit, or there is none."""
        return self.granted is None or self.opened is not None

    @property
    def is_current(self) -> bool:
        """Return whether it is open under the last grant, or there is none."""
        return self.granted == self.opened

    def is_newer_than(self, claim: Claim) -> bool:
        """Return whether the fence has opened the queue for us under a later epoch than the coordinator's."""
        opened = self.opened
        return (
            opened is not None
            and opened == self.granted
            and claim.member == opened.member
            and claim.epoch < opened.epoch
        )

    def regranted(self, claim: Claim) -> Self:
        """Return it after another grant."""
        return replace(self, granted=claim, tries=0)

    def tried(self) -> Self:
        """Return it after an opening failed."""
        return replace(self, tries=self.tries + 1)

    def accepted(self, claim: Claim, topic_start: int) -> Self:
        """Return it after the fence opened the queue."""
        return replace(self, opened=claim, opened_epoch=claim.epoch, tries=0, topic_start=topic_start)

    def forgotten(self) -> Self:
        """Return it after the fence has forgotten the opening."""
        return replace(self, opened=None)


#: The claim of a queue that we allocate for ourselves.
NO_CLAIM = QueueClaim()
