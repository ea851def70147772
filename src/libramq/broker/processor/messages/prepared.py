"""The prepared send: one request's messages, checked and ready to be stored."""

import msgspec

from libramq.broker.messages import stored_properties as text_properties
from libramq.message import properties as p
from libramq.remoting.headers import SendMessageHeader
from libramq.store.log.append import StoreMessage


class Prepared(msgspec.Struct, frozen=True):
    """One request's messages, ready to be stored.

    waits: for the disk, if it is flushed synchronously. recall_handle: of a message that waits until a time.
    """

    messages: list[StoreMessage]
    queue_id: int
    unique_key: str
    waits: bool
    creates_topic: bool
    recall_handle: str = ""


def prepared_batch(
    header: SendMessageHeader, queue_id: int, messages: list[StoreMessage], creates: bool
) -> Prepared:
    """Return the messages of a batch."""
    text = header.properties or ""
    waits = text_properties.find(text, p.WAIT) != "false"
    return Prepared(messages, queue_id, text_properties.find(text, p.UNIQ_KEY) or "", waits, creates)
