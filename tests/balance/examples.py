"""Groups for tests, and checks that must hold for every assignment."""

from collections import Counter
from itertools import chain

from hypothesis import strategies as st

from libramq.balance import Group, Member
from libramq.message.queue import MessageQueue


def queues(topic, count, broker="b"):
    return [MessageQueue(topic, broker, number) for number in range(count)]


def group(topics, subscriptions, owned=None, lag=None, capacities=None, epochs=None):
    """Return a group. `topics` has queue counts, `subscriptions` topics by member, `owned`
    queues by member.
    """
    return Group.of(
        [
            Member(
                client_id=name,
                topics=frozenset(subscribed),
                owned=tuple((owned or {}).get(name, ())),
                capacity=(capacities or {}).get(name, 1),
                epoch=(epochs or {}).get(name, -1),
            )
            for name, subscribed in subscriptions.items()
        ],
        [queue for topic, count in topics.items() for queue in queues(topic, count)],
        lag,
    )


def holding(of, assignment, epoch=1):
    """Return the same group, with members that hold the queues of an assignment."""
    return [
        Member(
            client_id=member.client_id,
            topics=member.topics,
            owned=tuple(assignment[member.client_id]),
            capacity=member.capacity,
            epoch=epoch,
        )
        for member in of.members
    ]


def check_partition(of, assignment):
    """Check that every subscribed queue has exactly one owner, and that the owner subscribes to its topic."""
    subscribed = {member.client_id: member.topics for member in of.members}
    wanted = [
        queue
        for topic, some in of.queues.items()
        for queue in some
        if any(topic in topics for topics in subscribed.values())
    ]
    given = Counter(chain.from_iterable(assignment.values()))
    assert given == Counter(wanted)
    for client_id, share in assignment.items():
        assert {queue.topic for queue in share} <= subscribed[client_id]


def moves(of, assignment):
    """Return how many queues left a member of the group that was their only holder."""
    holders = Counter(queue for member in of.members for queue in member.owned)
    return sum(
        1
        for member in of.members
        for queue in member.owned
        if holders[queue] == 1
        and queue in of.queues.get(queue.topic, ())
        and queue not in assignment[member.client_id]
    )


def loads(assignment):
    """Return the loads, largest first."""
    return sorted((len(share) for share in assignment.values()), reverse=True)


@st.composite
def groups(draw, *, queues_max, members_max, topics_max=4, alike=False):
    """Return groups whose members held nothing, their own queues, or queues that they may no longer have."""
    topic_count = draw(st.integers(1, topics_max))
    sizes = draw(st.lists(st.integers(1, queues_max), min_size=topic_count, max_size=topic_count))
    while sum(sizes) > queues_max:
        sizes[sizes.index(max(sizes))] -= 1
    topics = {f"t{number}": size for number, size in enumerate(sizes)}
    names = [f"m{number:02}" for number in range(draw(st.integers(1, members_max)))]
    some = st.frozensets(st.sampled_from(sorted(topics)), min_size=1)
    everything = draw(some)
    subscriptions = {name: everything if alike else draw(some) for name in names}
    owned = {name: [] for name in names}
    settled = draw(st.booleans())
    for topic, size in topics.items():
        for queue in queues(topic, size):
            candidates = [name for name in names if topic in subscriptions[name]] if settled else names
            holder = draw(st.sampled_from([None, *candidates]))
            if holder is not None:
                owned[holder].append(queue)
    return group(topics, subscriptions, owned)
