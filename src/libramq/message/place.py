"""The place of a message: where in the log its record begins, and its number in it if that is an inner batch.

A message of a batch has a place of its own, though the batch has one: the lower 48 bits are the batch's
physical offset, those above the number of the message within it. So offset message ids, which have 8 bytes
for a place, lead to one message. Apache's clients give all of a batch one id; this is ours.
"""

from typing import Final

#: Ours, of the offset: a log of 256 TiB; 15 bits are left for the number.
PLACE_BITS: Final = 48
_PLACE_MASK: Final = (1 << PLACE_BITS) - 1


def place_of(physical_offset: int, number: int) -> int:
    """Return the place of a message, by its number within the batch at a physical offset."""
    return physical_offset | number << PLACE_BITS


def split_place(place: int) -> tuple[int, int]:
    """Return physical offset of the record, and number within it, of a message's place."""
    return place & _PLACE_MASK, place >> PLACE_BITS
