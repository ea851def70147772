"""Kinds of events in simulations, which show what seeds really cover."""

from enum import StrEnum


class Happening(StrEnum):
    """One kind of event."""

    # Members.
    HUNDRED = "a hundred members join at once"
    LEFT = "a member leaves as it should"
    KILLED = "a member is killed"
    ZOMBIE = "a member wakes up after its session"
    FLAPPED = "a member comes and goes"
    CAME_BACK = "a static member returns in its own place"
    REMOVED = "an operator removes a member"
    GREW = "a topic grows"
    SHRANK = "a topic has fewer queues for a while"
    SET_BACK = "an operator sets a group back"
    MADE_AGAIN = "a topic is deleted and made again"
    GROUP_DELETED = "a group is deleted while members live"
    # Groups.
    COORDINATED = "a coordinated group"
    STOCK = "a group of stock members"
    ASKING = "a group of members that ask for their queues"
    MIXED = "a group of our members and stock ones"
    MODE_BACK = "a group goes back to its coordinator"
    BROADCASTING = "a group in which every member gets every message"
    ORDERLY = "a group that consumes in order"
    UNEQUAL = "a group with different subscriptions"
    # Brokers.
    RESTARTED = "a broker stops and starts again"
    BROKER_KILLED = "a broker is killed"
    POWER_CUT = "a broker's machine loses power"
    CUT_OFF = "a broker ends between two calls of its disk"
    OPENED_WITH_GRANT = "a queue is opened with the answer that grants it"
    COMMIT_FENCED = "a fence refused a commit"
    PULL_FENCED = "a fence refused a pull"
    HANDOVER_LOST = "a coordinator ends in the middle of a handover"
    TAKEN_OVER = "another broker takes a group over"
    DISK_FULL = "a disk is full"
    DISK_BROKEN = "a disk does not sync"
    DISK_COLD = "a disk has nothing in memory"
    CLOCK_SET = "a wall clock is set"
    CLOCKS_SWUNG = "all wall clocks are set by an hour, and back"
    # Slaves.
    MASTER_AWAY = "a master with a slave ends"
    SLAVE_APART = "a slave and its master hear nothing of each other"
    PROMOTED = "the slave of a SYNC_MASTER could take its place"
    ESCAPED = "an acting slave has another master deliver what waited"
    PASSED_ON = "an acting slave passes an open transaction on"
    REVIVED_ELSEWHERE = "an acting slave has another master redeliver what was popped"
    ACKNOWLEDGED_AT_SLAVE = "an acting slave takes the acknowledgement of a popped message"
    READ_FROM_SLAVE = "a member reads on from a slave under its opening"
    # Name servers.
    NAME_SERVER_KILLED = "a name server is killed"
    ROUTES_DIFFER = "name servers do not agree on a topic"
    # Network.
    DEAF_ONE_WAY = "one of two hears nothing of the other"
    DEAF_BOTH_WAYS = "two hear nothing of each other"
    SPLIT = "everybody falls into two halves"
    RESET = "a connection breaks"
    NOTICE_LOST = "a notification is lost"
    NOTICE_DOUBLED = "a notification comes twice"
    NOTICE_LATE = "a notification is late"
    # Messages.
    RETRIED = "a message is handled again after it failed"
    DEAD = "a message becomes a dead letter"
    REPEATED = "a consumed message is redelivered"
