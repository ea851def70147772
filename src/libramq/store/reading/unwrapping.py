"""Unwrapping: turns inner batches into ordinary records, in a thread if necessary, and caches them.

    record of a batch ─► small: unwrapped at once
                      └► large or compressed: a thread unwraps it (`Wrapped`), then the read is repeated

The newest results are cached, because a reader may take a batch of thousands in steps of 32 messages.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libramq.errors import LibraError, StoreCorrupt
from libramq.message import sys_flag as flags
from libramq.message.inner_batch import ROCKETMQ, BatchFormat, message_count
from libramq.message.record import RecordHead

#: Ours: only batches of at most this many messages are unwrapped at once, in up to 5 ms; others in a thread.
AT_ONCE_COUNT_MAX: Final = 256
#: Ours: only batches of at most this many bytes are unwrapped at once.
AT_ONCE_BYTES_MAX: Final = 64 * 1024
#: Ours: at most this many bytes of unwrapped batches are cached.
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
#: Ours: at most this many unwrapped batches are cached; unreadable ones take no space.
KEPT_MAX: Final = 1024


class Unwrapping:
    """Unwraps the batches of one store."""

    def __init__(self, batch_format: BatchFormat = ROCKETMQ) -> None:
        self._format = batch_format
        #: Empty for an unreadable batch, so that it is not unwrapped again and again.
        self._kept: dict[RecordHead, tuple[Sequence[bytes], int]] = {}
        self._kept_at: dict[int, tuple[RecordHead, Sequence[bytes]]] = {}

    def kept(self, physical_offset: int) -> tuple[RecordHead, Sequence[bytes]] | None:
        """Return the cached head and messages of the batch at a physical offset.

        The caller compares the head with a unit, which saves reading the record of up to 4 MiB.
        """
        return self._kept_at.get(physical_offset)

    def forget(self) -> None:
        """Clear the cache: the log was cut, and other records may take these offsets."""
        self._kept, self._kept_at = {}, {}

    def messages(self, record: bytes, head: RecordHead, *, may_wait: bool) -> Sequence[bytes] | None:
        """Return the records of a batch's messages; None if a thread must `prepare` them first.

        Raises StoreCorrupt if the batch cannot be read.
        """
        kept = self._kept.get(head)
        if kept is not None:
            if not kept[0]:
                raise StoreCorrupt(f"the batch at {head.physical_offset} cannot be read")
            return kept[0]
        is_small = len(record) <= AT_ONCE_BYTES_MAX and message_count(head) <= AT_ONCE_COUNT_MAX
        if not may_wait and (not is_small or self._format.is_packed(record, head)):
            return None
        return self.unwrap(record, head)

    def unwrap(self, record: bytes, head: RecordHead) -> Sequence[bytes]:
        """Unwrap a batch and cache the result; may be called in a thread. Raises StoreCorrupt."""
        try:
            messages = self._format.unwrap(record, head)
            if len(messages) != message_count(head):
                raise StoreCorrupt(f"{len(messages)} messages, and it announces {message_count(head)}")
        except LibraError as error:
            self._keep(head, ())
            raise StoreCorrupt(f"the batch at {head.physical_offset} cannot be read: {error}") from error
        self._keep(head, messages)
        return messages

    def _keep(self, head: RecordHead, messages: Sequence[bytes]) -> None:
        """Cache a result, and evict the oldest ones."""
        kept = dict(self._kept)
        kept[head] = messages, sum(map(len, messages))
        total = sum([each for _, each in kept.values()])
        while len(kept) > 1 and (total > KEPT_BYTES_MAX or len(kept) > KEPT_MAX):
            total -= kept.pop(next(iter(kept)))[1]
        self._kept = kept  # Atomic: a thread and the loop may both be here.
        self._kept_at = {each.physical_offset: (each, found) for each, (found, _) in kept.items() if found}


class Wrapped(NamedTuple):
    """A batch that a thread must unwrap before its messages are read."""

    unwrapping: Unwrapping
    record: bytes
    head: RecordHead

    def prepare(self) -> None:
        """Unwrap the batch; the repeated read will raise the error."""
        try:
            self.unwrapping.unwrap(self.record, self.head)
        except StoreCorrupt:
            return


def is_wrapped(head: RecordHead) -> bool:
    """Return whether a record is a batch."""
    return bool(head.sys_flag & flags.INNER_BATCH)
