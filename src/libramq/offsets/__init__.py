"""The committed offsets: how far each group has read each queue, and the files that remember it."""

from libramq.offsets.consumer_offset import ConsumerOffset
from libramq.offsets.journal import OffsetJournal, OffsetRecord
from libramq.offsets.ledger import OffsetLedger

__all__ = ["ConsumerOffset", "OffsetJournal", "OffsetLedger", "OffsetRecord"]
