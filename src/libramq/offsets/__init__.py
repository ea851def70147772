"""How far each group has read each queue, who may read on, and the files that remember it."""

from libramq.fencing import Claim
from libramq.offsets.consumer_offset import ConsumerOffset
from libramq.offsets.fence import Fences
from libramq.offsets.journal import OffsetJournal, OffsetRecord
from libramq.offsets.ledger import OffsetLedger

__all__ = ["Claim", "ConsumerOffset", "Fences", "OffsetJournal", "OffsetLedger", "OffsetRecord"]
