"""The message filter: what decides by a message's properties whether a consumer receives it."""

from typing import Protocol


class MessageFilter(Protocol):
    """A filter by properties, beside the one by tag codes, which needs no message.

    weight: how often it looks something up in a message's properties.
    """

    @property
    def weight(self) -> int: ...

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these stored properties matches."""
        ...
