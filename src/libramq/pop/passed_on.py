"""The account of an acting slave: which popped messages and half messages other masters have by now, or
consumers have acknowledged, and which of them its master has not asked about yet.

    journal   0 … place … … until           in the order in which they become visible:  ✓ ✓ ○ ✓ │ … …
                                                                                            mark

Everything up to the mark was passed on, except waiting check points. Of these and of later check points,
single messages may have been acknowledged. A check point is identified by its first place in the journal,
because a master that stops writes those in flight again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from libramq.formats.document import Document
from libramq.pop.check_point import CheckPoint

FILE_NAME: Final = "popPassedOn.json"


class PassedOn(Document, frozen=True, kw_only=True):
    """A slave's account of its master's journal.

    place: that of the journal's first check point in flight; -1: unknown, as the master is Apache's. until:
    the journal's end when the slave read it. visible_ms, origin: the mark, that is the last check point
    passed on. waiting: the origins of earlier ones that were not. acknowledged: the bits of messages
    acknowledged at the slave, by their check points' origins. is_ahead: whether the slave has made
    deliveries, of POP or other messages, that its master may not have asked about. halves: where the slave
    began to pass on half messages, and the end of their topic; None: not begun, or no longer.
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
        """Return the part valid for a journal that ends there: later check points will be different ones."""
        if self.until <= journal_end:
            return self
        kept = tuple(each for each in self.acknowledged if each[0] < journal_end)
        return msgspec.structs.replace(self, until=journal_end, acknowledged=kept)

    def reaches(self, check_point: CheckPoint) -> bool:
        """Return whether a check point is at or before the mark."""
        return (check_point.visible_ms, check_point.origin) <= (self.visible_ms, self.origin)

    def of(self, check_points: Iterable[CheckPoint]) -> Iterator[CheckPoint]:
        """Yield the check points whose messages were passed on."""
        waiting = {*self.waiting}
        for each in check_points:
            if 0 <= each.origin < self.until and self.reaches(each) and each.origin not in waiting:
                yield each

    def done_of(
        self, check_points: Iterable[CheckPoint], acknowledged: Mapping[int, int]
    ) -> Iterator[tuple[CheckPoint, int]]:
        """Yield the check points with finished messages, and the bits of these.

        acknowledged: the account's, as a dict.
        """
        for each in check_points:
            if any(self.of((each,))):
                yield each, each.open_bits
            elif 0 <= each.origin < self.until and each.origin in acknowledged:
                bits = acknowledged[each.origin] & each.open_bits
                if bits:
                    yield each, bits
