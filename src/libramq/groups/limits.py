"""The limits of groups: how many members, subscriptions, queues and coordinated groups a broker takes."""

from collections.abc import Iterable, Sized
from typing import Final

#: Ours: the seeds' and the design's largest laboratory group on real sockets.
MEMBERS_MAX: Final = 10_000
#: Ours: what is assigned within a turn of the loop, in some 10 ms; more by a thread. A thousand members that
#: subscribe to different ones of a thousand topics take 0.3 to 1.7 s.
SUBSCRIPTIONS_AT_ONCE_MAX: Final = 200
QUEUES_AT_ONCE_MAX: Final = 1_000
#: Ours: a client subscribes to its own topics, not to all there are.
SUBSCRIPTIONS_MAX: Final = 2_000
#: Ours: memory of all members' subscriptions: twice 10,000 members with 1.6 KB each. A group may have what is
#: left beside it, so half at most: one whose members subscribe to megabytes must not keep others out.
SUBSCRIPTION_BYTES_MAX: Final = 32 * 1024 * 1024
#: Ours: as many as the group table takes (catalog.group_table.GROUPS_MAX).
COORDINATED_GROUPS_MAX: Final = 25_000
#: Ours: members of all coordinated groups; one held poll each, as waits.held_pulls.HELD_PULLS_MAX.
MEMBERS_OF_ALL_MAX: Final = 200_000


def is_large(subscriptions: Iterable[Sized], queue_count: int) -> bool:
    """Return whether an assignment takes more than some milliseconds. subscriptions: each member's."""
    return sum(map(len, subscriptions)) > SUBSCRIPTIONS_AT_ONCE_MAX or queue_count > QUEUES_AT_ONCE_MAX


def has_share(of_group: int, of_all: int, maximum: int) -> bool:
    """Return whether a group leaves as much to all others as it has; of_all: with its own."""
    return of_group <= maximum - of_all
