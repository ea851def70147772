"""A reply with a list of topics, of which there may be hundreds of thousands."""

from collections.abc import Callable, Sequence
from typing import Final

from libramq.kernel.work import Work, portions
from libramq.remoting.body.route import TopicList
from libramq.rpc.outcome import Outcome, reply_rows

#: Ours: topics that are encoded on the loop, in 1 ms; more on a thread.
ENCODED_AT_ONCE_MAX: Final = 4_096


def listed(topics: list[str]) -> Outcome:
    """Return the list of these topics, which a thread encodes where it is long."""
    return reply_rows(lambda: TopicList(topic_list=topics), len(topics), inline_max=ENCODED_AT_ONCE_MAX)


def listed_of(topics: list[str], wanted: Callable[[Sequence[str]], list[str]]) -> Work[Outcome]:
    """Return the list of the wanted ones of these topics."""
    found: list[str] = []
    for some in portions(topics):
        found += wanted(some)
        yield None
    return listed(found)
