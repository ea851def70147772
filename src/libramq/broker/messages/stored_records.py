"""Stored records that are to be stored again, or acted upon: those with a damaged body are left out.

A copy of one would have a checksum of its own, and nobody would ever find out. Pulls send records as they
are, and leave it to consumers to compare the checksum.
"""

from collections.abc import Sequence

from libramq.errors import RemoteProtocolError
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.record import decode_record

log = get_logger(__name__)


def undamaged(pieces: Sequence[bytes | memoryview]) -> list[MessageExt]:
    """Decode the records of a read, bodies as they are stored; damaged ones are left out, and logged."""
    data, messages, position = b"".join(pieces), [], 0
    while position < len(data):
        try:
            decoded = decode_record(data, position, decompress=False, check_crc=True)
        except RemoteProtocolError as error:
            log.error("a damaged message is left out", reason=str(error))
            position += max(1, int.from_bytes(data[position : position + 4]))  # Reads return whole records.
            continue
        if decoded is None:
            break
        message, position = decoded
        messages.append(message)
    return messages
