"""The tag code: the hash of a tag, by which queues are filtered without reading messages.

Java's String.hashCode, h = 31 * h + c over UTF-16 code units, wrapped to signed 32 bits. As a tag code it is
sign-extended to the 64 bits of a consume queue unit; no tag is 0. Clients resolve collisions.

Upstream: store/MessageExtBrokerInner.java, tagsString2tagsCode.
"""

from functools import lru_cache

_CODES_KEPT = 4096  # There are few tags, but one in every message; a cache entry takes about 200 bytes.


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: a signed 32-bit number."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFF_FFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(units), 2):
            value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=_CODES_KEPT)
def tag_code(tags: str | None) -> int:
    """Return the tag code that a consume queue unit holds for a message with these tags."""
    return java_hash(tags) if tags else 0
