"""The groups' committed offsets, the fences that decide who may read and commit, and the files of both."""

from libramq.fencing import Claim
from libramq.offsets.consumer_offset import ConsumerOffset
from libramq.offsets.fence import Fences
from libramq.offsets.journal import OffsetJournal, OffsetRecord
from libramq.offsets.ledger import OffsetLedger

__all__ = ["Claim", "ConsumerOffset", "Fences", "OffsetJournal", "OffsetLedger", "OffsetRecord"]
