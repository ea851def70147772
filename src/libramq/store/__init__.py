"""The store: commit log, consume queues, flush, retention, recovery and reading, in RocketMQ's format."""

from libramq.store.config import FlushDiskType, StoreConfig
from libramq.store.flush import FlushPlan, run_flush
from libramq.store.log.append import AppendResult, AppendStatus, StoreMessage
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import ReadResult, ReadStatus

__all__ = [
    "AppendResult",
    "AppendStatus",
    "FlushDiskType",
    "FlushPlan",
    "MessageStore",
    "ReadResult",
    "ReadStatus",
    "StoreConfig",
    "StoreMessage",
    "run_flush",
]
