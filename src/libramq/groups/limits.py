"""The limits of groups: the members, subscriptions, queues and coordinated groups that a broker accepts."""

from collections.abc import Iterable, Sized
from typing import Final

#: Ours: the seeds' and the design's largest laboratory group on real sockets.
MEMBERS_MAX: Final = 10_000
#: Ours: up to this many subscriptions are assigned within a turn of the loop, in some 10 ms; more in a
#: thread. A thousand members with different subscriptions among a thousand topics take 0.3 to 1.7 s.
SUBSCRIPTIONS_AT_ONCE_MAX: Final = 200
#: Ours: up to this many queues are assigned within a turn of the loop; more in a thread.
QUEUES_AT_ONCE_MAX: Final = 1_000
#: Ours: a client subscribes to its own topics, not to all topics.
SUBSCRIPTIONS_MAX: Final = 2_000
#: Ours: the memory of all members' subscriptions: twice 10,000 members with 1.6 KB each. A group must leave
#: as much free as it uses, so it gets at most half: a group with megabytes of subscriptions must not keep
#: others out.
SUBSCRIPTION_BYTES_MAX: Final = 32 * 1024 * 1024
#: Ours: as many as the group table holds (catalog.group_table.GROUPS_MAX).
COORDINATED_GROUPS_MAX: Final = 25_000
#: Ours: members of all coordinated groups; one held poll each, as waits.held_pulls.HELD_PULLS_MAX.
MEMBERS_OF_ALL_MAX: Final = 200_000


def is_large(subscriptions: Iterable[Sized], queue_count: int) -> bool:
    """Return whether an assignment takes more than some milliseconds. subscriptions: each member's."""
    return sum(map(len, subscriptions)) > SUBSCRIPTIONS_AT_ONCE_MAX or queue_count > QUEUES_AT_ONCE_MAX


def has_share(of_group: int, of_all: int, maximum: int) -> bool:
    """Return whether a group leaves as much free as it uses; of_all: the use of all groups with it."""
    return of_group <= maximum - of_all
