"""The pull cursor of a queue: what the next pull asks for, and whether one is under way."""

from libramq.client.consuming.pulling.catch_up import CatchUpPace
from libramq.clock import MonotonicMs


class PullCursor:
    """A cursor marks where a queue is pulled next. `Pulling` moves it."""

    __slots__ = (
        "accepts_damaged",
        "broker_id",
        "catch_up",
        "due_ms",
        "handled_before",
        "has_failed",
        "is_throttled",
        "is_under_way",
        "last_ms",
        "last_stored_ms",
        "next_offset",
        "number",
        "sought_offset",
        "start_offset",
        "was_missing",
    )

    def __init__(self, now_ms: MonotonicMs) -> None:
        self.start_offset = 0
        self.next_offset = 0
        #: The last pull's; answers to earlier ones come too late.
        self.number = 0
        #: Where the program wants to begin, whatever is committed.
        self.sought_offset: int | None = None
        self.broker_id = 0
        self.last_ms = self.due_ms = now_ms
        self.is_under_way = False
        self.is_throttled = False
        self.has_failed = False
        #: When the last message that we have pulled was stored, also in an ownership just before; 0 for none.
        self.last_stored_ms = 0
        #: The highest offset that we handled in an earlier ownership.
        self.handled_before = -1
        #: Its topic was missing for a while: its offsets may mean other messages now.
        self.was_missing = False
        self.catch_up: CatchUpPace | None = None
        #: The last pull brought a body that does not match its checksum: the next one is taken as it comes.
        self.accepts_damaged = False

    @property
    def has_advanced(self) -> bool:
        """Return whether anything was read from the start offset on."""
        return self.next_offset > self.start_offset

    def start(self, offset: int, handled_before: int) -> None:
        """Begin at an offset."""
        self.start_offset = self.next_offset = offset
        self.accepts_damaged = False
        self.handled_before = handled_before
