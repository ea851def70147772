"""The timer request: which property of a message says when it is delivered, how far ahead that may be, and in
which slot it waits.

    TIMER_DELAY_SEC · TIMER_DELAY_MS · TIMER_DELIVER_MS      the first that is found counts

Upstream: broker/util/HookUtils.transformTimerMessage, which every stored message goes through.
"""

import re
from dataclasses import dataclass
from typing import Final

from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.message import properties as p

#: The properties that ask for a time, in the order in which they count.
#: Long.parseLong, but for other alphabets' digits.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerOptions:
    """The options of timers; MessageStoreConfig.timerWheelEnable and its kin.

    precision_ms: messages are delivered at its multiples. roll_window_slots: messages that are further away
    are collected again, so that the timer log's old files can go.
    """

    enabled: bool = True
    precision_ms: int = 1000
    max_delay_ms: int = 3 * 24 * 3600 * 1000
    roll_window_slots: int = 2 * 24 * 3600
    messages_per_slot_max: int = 2**31 - 1

    @property
    def roll_window_ms(self) -> int:
        """Return the time within which a message is collected once."""
        return self.roll_window_slots * self.precision_ms


def requested_ms(properties: dict[str, str], wall_ms: WallMs) -> int | None:
    """Return the time at which a message is to be delivered; None if it asks for none.

    A message that waited already has TIMER_OUT_MS, and asks for no second time. BrokerError if the time is
    not a whole number.
    """
    if p.TIMER_OUT_MS in properties:
        return None
    for name in p.TIMER_REQUESTS:
        text = properties.get(name)
        if text is None:
            continue
        if not _WHOLE_NUMBER.match(text):
            raise _illegal(f"{name} is {text[:40]!r}, not a whole number of up to 18 digits")
        number = int(text)
        if name == p.TIMER_DELAY_SEC:
            return int(wall_ms) + number * 1000
        return number if name == p.TIMER_DELIVER_MS else int(wall_ms) + number
    return None


def slot_ms(
    deliver_ms: int, properties: dict[str, str], options: TimerOptions, wall_ms: WallMs
) -> int | None:
    """Return the time of the slot in which a message waits; None if it is stored at once.

    A slot is delivered when its time and the precision have passed. BrokerError if it waits too long.
    """
    wait_ms = deliver_ms - int(wall_ms)
    if wait_ms <= 0:
        if p.TIMER_DEL_UNIQKEY in properties:
            raise _illegal("what it deletes is delivered already")
        return None
    if not options.enabled:
        raise broker_error(
            ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled; set timerWheelEnable=true"
        )
    if wait_ms > options.max_delay_ms:
        raise _illegal(
            f"it would be delivered in {wait_ms // 1000} s; timerMaxDelaySec is"
            f" {options.max_delay_ms // 1000}"
        )
    precision_ms = options.precision_ms
    if deliver_ms % precision_ms == 0:
        return deliver_ms - precision_ms
    return deliver_ms // precision_ms * precision_ms


def _illegal(reason: str) -> Exception:
    return broker_error(ResponseCode.MESSAGE_ILLEGAL, f"timer message refused: {reason}")
