"""Delay levels: the default delay of each level (messageDelayLevel), and the number of levels.

The property DELAY holds the level: the first is 1, and a higher level than the last counts as the last. A
broker may be configured with other delays (`broker/config.py`), which clients do not know.
Upstream: MessageStoreConfig.messageDelayLevel.
"""

from typing import Final

#: 1s 5s 10s 30s 1m … 2h
DELAY_LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200
    )
)  # fmt: skip
DELAY_LEVEL_MAX: Final = len(DELAY_LEVELS_MS)


def delay_ms(level: int) -> int:
    """Return the delay of a level; levels above the highest count as the highest."""
    return DELAY_LEVELS_MS[min(level, DELAY_LEVEL_MAX) - 1]
