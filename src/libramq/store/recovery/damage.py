"""The damage of a store: data that was on the disk and cannot be read, and the operator's choices.

        skip   skip unreadable data, keep everything behind it
        cut    end the log before it; the data behind is kept aside in `damaged`

One record whose frame leads to a valid next one is skipped automatically. For anything else the broker does
not start until an operator chooses; its error states the cost of each choice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from libramq.errors import StoreDamaged
from libramq.message.record import RecordHead
from libramq.message.sys_flag import is_queued
from libramq.store.log.log_scan import Damage
from libramq.store.log.segments import Segments

REMEDY = "Bring back the files from a copy, or start with --damaged=skip or --damaged=cut"


@dataclass(slots=True)
class DamageExtent:
    """The extent of the damage, and what lies behind it. next_numbers: by queue, of the data before it."""

    first: Damage
    next_numbers: dict[tuple[str, int], int]
    stretches: list[Damage] = field(default_factory=list)
    record_count: int = 0
    record_bytes: int = 0
    missing_count: int = 0

    def count(self, rest: Iterable[RecordHead | Damage]) -> "DamageExtent":
        """Read the rest of the log and count what each choice would lose."""
        self.stretches.append(self.first)
        for found in rest:
            if isinstance(found, Damage):
                if not found.is_blank:
                    self.stretches.append(found)
                continue
            self.record_count += 1
            self.record_bytes += found.size
            if is_queued(found.sys_flag):
                key = found.topic, found.queue_id
                self.missing_count += max(0, found.queue_offset - self.next_numbers.get(key, 0))
                self.next_numbers[key] = found.queue_offset + 1
        return self


def refusal(segments: Segments, extent: DamageExtent, known_end: int) -> StoreDamaged:
    """Return the error for damage without an operator's decision."""
    first = extent.first
    damaged_bytes = sum(min(each.end, max(known_end, each.offset)) - each.offset for each in extent.stretches)
    places = f"{len(extent.stretches)} places, the first" if len(extent.stretches) > 1 else "one place,"
    return StoreDamaged(
        f"the commit log cannot be read in {places} at offset {first.offset} "
        f"({segments.path(segments.start_of(first.offset))}, {first.reason}), although it was on the disk up "
        f"to {known_end}. --damaged=skip loses {damaged_bytes} bytes, which are at least "
        f"{max(1, extent.missing_count)} messages, and keeps the {extent.record_count} messages behind them; "
        f"--damaged=cut loses those {extent.record_count} messages ({extent.record_bytes} bytes) too. "
        f"{REMEDY}; no message was touched."
    )


def lost_files(segments: Segments, known_end: int, unit_count: int) -> StoreDamaged:
    """Return the error for a log that is shorter than it was known to be."""
    what = f"ends at offset {segments.end}" if segments.starts else "has no files"
    way = (
        "either continues without them" if segments.starts
        else "skip continues with the numbers that queues had, cut lets them begin at 0 again"
    )  # fmt: skip
    return StoreDamaged(
        f"the commit log in {segments.directory} {what}, although it was on the disk up to offset "
        f"{known_end}: files were removed, or their disk is not mounted. "
        f"{unit_count} messages of the queues are gone with them. {REMEDY} ({way}); no message was touched."
    )
