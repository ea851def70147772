"""The pull cursor of a queue: what the next pull asks for, and whether one is under way."""

from dataclasses import dataclass

from libramq.client.consuming.pulling.catch_up import CatchUpPace
from libramq.clock import MonotonicMs


@dataclass(slots=True, eq=False)
class PullCursor:
    """A cursor marks where a queue is pulled next. `Pulling` moves it.

    number: of the last pull; answers to earlier ones come too late. sought_offset: where the program wants to
    begin, whatever is committed. last_stored_ms: when the last message that we have pulled was stored, also
    in an ownership just before; 0 for none. handled_before: the highest offset handled in an earlier
    ownership. was_missing: its topic was missing for a while, so its offsets may mean other messages now.
    accepts_damaged: the last pull brought a body that does not match its checksum, and the next one is taken
    as it comes.
    """

    last_ms: MonotonicMs
    due_ms: MonotonicMs
    start_offset: int = 0
    next_offset: int = 0
    number: int = 0
    sought_offset: int | None = None
    broker_id: int = 0
    is_under_way: bool = False
    is_throttled: bool = False
    has_failed: bool = False
    last_stored_ms: int = 0
    handled_before: int = -1
    was_missing: bool = False
    catch_up: CatchUpPace | None = None
    accepts_damaged: bool = False

    @property
    def has_advanced(self) -> bool:
        """Return whether anything was read from the start offset on."""
        return self.next_offset > self.start_offset

    def start(self, offset: int, handled_before: int) -> None:
        """Begin at an offset."""
        self.start_offset = self.next_offset = offset
        self.accepts_damaged = False
        self.handled_before = handled_before
