"""The prepared send: one request's messages, checked and ready to be stored."""

from collections.abc import Mapping, Sequence

import msgspec

from libramq.broker.messages import stored_properties as text_properties
from libramq.message import properties as p
from libramq.remoting.headers import SendMessageHeader
from libramq.store.log.append import StoreMessage
from libramq.store.log.message_run import MessageRun


class Prepared(msgspec.Struct, frozen=True):
    """One request's messages, ready to be stored.

    waits: for the disk, if it is flushed synchronously. recall_handle: of a message that waits until a time.
    count: of messages. added: fields of the answer that only batches have.
    """

    messages: list[StoreMessage | MessageRun]
    queue_id: int
    unique_key: str
    waits: bool
    creates_topic: bool
    recall_handle: str = ""
    count: int = 1
    added: Mapping[str, str] | None = None


def prepared_batch(
    header: SendMessageHeader, queue_id: int, runs: Sequence[MessageRun], creates: bool
) -> Prepared:
    """Return the messages of a batch."""
    unique_key, waits = _of_batch(header)
    count = sum([len(run.bodies) for run in runs])
    return Prepared([*runs], queue_id, unique_key, waits, creates, count=count)


def prepared_whole(header: SendMessageHeader, queue_id: int, batch: StoreMessage, creates: bool) -> Prepared:
    """Return a batch that is stored as one record.

    The answer names its first message's id, and `batchUniqId` if the sender gave the batch an id: Java's
    producers then know that it is one. lbInnerNum: to ours, which know the ids of the others by that.
    """
    unique_key, waits = _of_batch(header)
    added = {"lbInnerNum": str(batch.count)}
    if unique_key:
        added["batchUniqId"] = unique_key
    return Prepared([batch], queue_id, unique_key, waits, creates, added=added)


def _of_batch(header: SendMessageHeader) -> tuple[str, bool]:
    """Return the unique id that a batch has itself, and whether its sender waits for the disk."""
    text = header.properties or ""
    return text_properties.find(text, p.UNIQ_KEY) or "", text_properties.find(text, p.WAIT) != "false"
