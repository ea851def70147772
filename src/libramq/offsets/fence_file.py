"""The fences' file: openings, and the state of a group apart from its queues, by "topic@group@queue id".

    orders@G@3   who has opened queue 3 of orders, under which epoch
        @G@-1        the epoch left behind by removed queues of G
    @G@-2        the epoch under which members of G began to allocate for themselves

Topics have names, so entries without a topic belong to the group.
"""

from typing import Final

from libramq.formats.document import Document

#: A character that no name of a topic or group has.
SEPARATOR: Final = "@"
#: A topic and a queue id, or one of the next two.
Key = tuple[str, int]
LEFT_BEHIND: Final = ("", -1)
#: Present while the group's mode is MODE_CLIENT.
ALLOCATES: Final = ("", -2)


class Opening(Document, frozen=True, kw_only=True):
    """An entry of the file; those of a group itself have no member."""

    member: str
    epoch: int


class FencesFile(Document, frozen=True, kw_only=True):
    """The content of config/groupFences.json."""

    openings: dict[str, Opening] = {}


def entry_name(group: str, key: Key) -> str:
    """Return the name of an entry."""
    return f"{key[0]}{SEPARATOR}{group}{SEPARATOR}{key[1]}"


def entry_key(name: str) -> tuple[str, Key]:
    """Return an entry's group and key."""
    topic, group, queue_id = name.split(SEPARATOR)
    return group, (topic, int(queue_id))
