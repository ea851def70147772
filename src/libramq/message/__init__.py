"""The message: its properties, ids and flags, its queue, and the record it is stored as."""

from libramq.message.batch import BatchItem, decode_batch, encode_batch
from libramq.message.ids import UniqueIdGenerator
from libramq.message.message import Message, MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_record, decode_records, encode_record
from libramq.message.tags import java_hash, tag_code
from libramq.message.validation import validate

__all__ = [
    "BatchItem",
    "Message",
    "MessageExt",
    "MessageQueue",
    "UniqueIdGenerator",
    "decode_batch",
    "decode_record",
    "decode_records",
    "encode_batch",
    "encode_record",
    "java_hash",
    "tag_code",
    "validate",
]
