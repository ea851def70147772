"""A reply with a list of topics, of which there may be hundreds of thousands."""

from functools import partial
from typing import Final

from libramq.formats.document import encode_body
from libramq.remoting.body.route import TopicList
from libramq.rpc.outcome import Outcome, Reply, reply_encoded

#: Ours: topics that are looked at, or encoded, before others are served, of up to 500,000; one takes 0.3 µs.
TOPICS_LISTED_PER_STEP: Final = 4_096


def listed(topics: list[str]) -> Outcome:
    """Return the list of these topics, which a thread encodes where it is long."""
    encode = partial(encode_body, TopicList(topic_list=topics))
    if len(topics) <= TOPICS_LISTED_PER_STEP:
        return Reply(body=encode())
    return reply_encoded(encode)
