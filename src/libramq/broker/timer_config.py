"""The options of timer messages, under the names of Apache's MessageStoreConfig and BrokerConfig."""

from dataclasses import dataclass
from typing import Final

from libramq.broker.option import option
from libramq.errors import ConfigError

#: MessageStoreConfig.setTimerPrecisionMs; other values are rounded there.
TIMER_PRECISIONS_MS: Final = (100, 200, 500, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """The options of timer messages."""

    timer_wheel_enable: bool = option(
        True,
        "timerWheelEnable",
        "Whether a message can wait until any time: `TIMER_DELIVER_MS`, `TIMER_DELAY_MS`, `TIMER_DELAY_SEC`.",
    )
    timer_precision_ms: int = option(
        1_000,
        "timerPrecisionMs",
        "Such messages are delivered at multiples of so many ms: 100, 200, 500 or 1000. Do not change it for "
        "a store that exists.",
    )
    timer_max_delay_sec: int = option(
        259_200, "timerMaxDelaySec", "The longest time that a message can wait, in seconds: three days."
    )
    timer_roll_window_slot: int = option(
        172_800,
        "timerRollWindowSlot",
        "A message that waits longer than so many slots is stored a second time meanwhile, so that old files "
        "can be deleted.",
    )
    timer_congest_num_each_slot: int = option(
        2_147_483_647,
        "timerCongestNumEachSlot",
        "How many messages may wait for the same moment; further ones are refused. Apache's broker begins to "
        "refuse some at this number, and all at twice as many.",
    )
    timer_log_file_bytes: int = option(
        104_857_600,
        "mappedFileSizeTimerLog",
        "The size of a timer log file: 52 bytes for each timer message. Do not change it for a store that "
        "exists.",
    )
    recall_message_enable: bool = option(
        False, "recallMessageEnable", "Whether a producer can take back a message that still waits."
    )

    def check_timers(self) -> None:
        """Raise ConfigError for a precision that there is not."""
        if self.timer_precision_ms not in TIMER_PRECISIONS_MS:
            raise ConfigError(f"timerPrecisionMs {self.timer_precision_ms}; 100, 200, 500 or 1000 is allowed")
