"""The prepared send: one request's messages, checked and ready to be stored."""

from collections.abc import Sequence

import msgspec

from libramq.broker.messages import stored_properties as text_properties
from libramq.message import properties as p
from libramq.remoting.headers import SendMessageHeader
from libramq.store.log.append import StoreMessage
from libramq.store.log.message_run import MessageRun


class Prepared(msgspec.Struct, frozen=True):
    """One request's messages, ready to be stored.

    waits: for the disk, if it is flushed synchronously. recall_handle: of a message that waits until a time.
    count: of messages.
    """

    messages: list[StoreMessage | MessageRun]
    queue_id: int
    unique_key: str
    waits: bool
    creates_topic: bool
    recall_handle: str = ""
    count: int = 1


def prepared_batch(
    header: SendMessageHeader, queue_id: int, runs: Sequence[MessageRun], creates: bool
) -> Prepared:
    """Return the messages of a batch."""
    text = header.properties or ""
    waits = text_properties.find(text, p.WAIT) != "false"
    unique_key = text_properties.find(text, p.UNIQ_KEY) or ""
    count = sum([len(run.bodies) for run in runs])
    return Prepared([*runs], queue_id, unique_key, waits, creates, count=count)
