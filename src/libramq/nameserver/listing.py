"""A reply with a list of topics, of which there may be hundreds of thousands."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.formats.document import encode_body
from libramq.kernel.work import Work, portions
from libramq.remoting.body.route import TopicList
from libramq.rpc.outcome import Outcome, Reply, reply_encoded

#: Ours: topics that are encoded on the loop, in 1 ms; more on a thread.
ENCODED_AT_ONCE_MAX: Final = 4_096


def listed(topics: list[str]) -> Outcome:
    """Return the list of these topics, which a thread encodes where it is long."""
    encode = partial(encode_body, TopicList(topic_list=topics))
    if len(topics) <= ENCODED_AT_ONCE_MAX:
        return Reply(body=encode())
    return reply_encoded(encode)


def listed_of(topics: list[str], wanted: Callable[[Sequence[str]], list[str]]) -> Work[Outcome]:
    """Return the list of the wanted ones of these topics."""
    found: list[str] = []
    for some in portions(topics):
        found += wanted(some)
        yield None
    return listed(found)
