"""The account of an acting slave: which popped messages and half messages other masters have by now, or
consumers are done with, and which of them its master has not asked about yet.

    journal   0 … place … … until           in the order in which they become visible:  ✓ ✓ ○ ✓ │ … …
                                                                                            mark

Everything up to the mark was passed on, except what is waiting. Of other check points single messages may
be acknowledged. A check point is known by where the journal had it first, because a master that stops writes
those in flight again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from libramq.formats.document import Document
from libramq.pop.check_point import CheckPoint

FILE_NAME: Final = "popPassedOn.json"


class PassedOn(Document, frozen=True, kw_only=True):
    """A slave's account of its master's journal.

    place: where the journal's first check point in flight was; -1: unknown, as the master is Apache's.
    until: the journal's end, when the slave read it. visible_ms, origin: the mark, the last check point
    that was passed on. waiting: the origins of those before it that were not. acknowledged: the bits of
    messages that were acknowledged at the slave, by the origins of their check points. is_ahead: whether the
    slave has delivered, of POP or other messages, what its master may not have asked about. halves: where the
    slave began to pass on half messages, and where their topic ended; None: it has not, or no longer.
    """

    place: int = -1
    until: int = 0
    visible_ms: int = 0
    origin: int = -1
    waiting: tuple[int, ...] = ()
    acknowledged: tuple[tuple[int, int], ...] = ()
    is_ahead: bool = False
    halves: tuple[int, int] | None = None

    def bounded(self, journal_end: int) -> "PassedOn":
        """Return what holds of a journal that ends there: check points behind it will be others."""
        if self.until <= journal_end:
            return self
        kept = tuple(each for each in self.acknowledged if each[0] < journal_end)
        return msgspec.structs.replace(self, until=journal_end, acknowledged=kept)

    def reaches(self, check_point: CheckPoint) -> bool:
        """Return whether a check point is not behind the mark."""
        return (check_point.visible_ms, check_point.origin) <= (self.visible_ms, self.origin)

    def of(self, check_points: Iterable[CheckPoint]) -> Iterator[CheckPoint]:
        """Yield those of some check points whose messages were passed on."""
        waiting = {*self.waiting}
        for each in check_points:
            if 0 <= each.origin < self.until and self.reaches(each) and each.origin not in waiting:
                yield each

    def done_of(
        self, check_points: Iterable[CheckPoint], acknowledged: Mapping[int, int]
    ) -> Iterator[tuple[CheckPoint, int]]:
        """Yield those of some check points of which something is done, and the bits of these messages.

        acknowledged: the account's, as a dict.
        """
        for each in check_points:
            if any(self.of((each,))):
                yield each, each.open_bits
            elif 0 <= each.origin < self.until and each.origin in acknowledged:
                bits = acknowledged[each.origin] & each.open_bits
                if bits:
                    yield each, bits
