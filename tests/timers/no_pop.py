"""A store without POP, for timer tests; a `timers.timers.PopEntries`."""


class NoPop:
    """A store without POP."""

    place = 0
    oldest_place = None

    def skip(self, offset: int) -> int:
        """Skip nothing."""
        return offset

    def owns(self, real_topic: str | None) -> bool:
        """Return False."""
        return False
