"""The dispatch of a stored record: computing its unit from the record alone.

Used when queues are rebuilt from the commit log. The tag code is the hash of the tag; for delayed messages it
is the delivery time.

Upstream: store/CommitLog.checkMessageAndReturnSize.
"""

from typing import Final

from libramq.message.names import SCHEDULE_TOPIC
from libramq.message.properties import DELAY, TAGS, find_property
from libramq.message.record import RecordHead
from libramq.message.tags import tag_code

# messageDelayLevel, in seconds: 1s 5s 10s 30s 1m … 2h
DELAY_LEVEL_SECONDS: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
_DELAY = DELAY.encode()
_TAGS = TAGS.encode()


def delay_ms(level: int) -> int:
    """Return the delay of a level; levels above the highest count as the highest."""
    return DELAY_LEVEL_SECONDS[min(level, len(DELAY_LEVEL_SECONDS)) - 1] * 1000


def unit_tag_code(head: RecordHead) -> int:
    """Return the tag code of a record's consume queue unit."""
    level = _delay_level(head)
    if level:
        return head.store_timestamp_ms + delay_ms(level)
    tags = find_property(head.properties, _TAGS)
    return tag_code(tags.decode("utf-8", "replace")) if tags else 0


def is_unit_tag_code(code: int, head: RecordHead) -> bool:
    """Return whether a tag code may be that of a record's unit: the broker's delays are not known here."""
    return code >= head.store_timestamp_ms if _delay_level(head) else code == unit_tag_code(head)


def _delay_level(head: RecordHead) -> int:
    """Return the level of a delayed message; 0 for any other."""
    if head.topic != SCHEDULE_TOPIC:
        return 0
    level = find_property(head.properties, _DELAY)
    return int(level) if level and level.isdigit() and len(level) < 10 else 0
