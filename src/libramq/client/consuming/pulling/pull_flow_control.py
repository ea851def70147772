"""Flow control: whether a queue may be pulled now, or holds enough already.

Upstream: DefaultMQPushConsumerImpl.pullMessage, RebalancePushImpl.messageQueueChanged.
"""

from dataclasses import dataclass
from typing import Final

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.ownership.held_messages import HeldMessages

#: PULL_TIME_DELAY_MILLS_WHEN_CACHE_FLOW_CONTROL: look again after.
THROTTLED_MS: Final = 50
#: PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL.
BROKER_BUSY_MS: Final = 20
#: pullTimeDelayMillsWhenException.
PULL_FAILED_MS: Final = 1_000
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PullLimits:
    """The limits on the messages held for one queue."""

    count_max: int
    mib_max: int
    span_max: int

    def exceeded_by(self, held: HeldMessages) -> str | None:
        """Return the limit that a queue's messages exceed; None if it may be pulled."""
        if len(held) > self.count_max:
            return f"{len(held)} messages wait, over {self.count_max}"
        if held.size // _MIB > self.mib_max:
            return f"{held.size // _MIB} MiB wait, over {self.mib_max}"
        # Few messages cannot have a wide span; computing it costs a look at all of them.
        if held and held.span > self.span_max:
            return f"the offsets that wait span {held.span}, over {self.span_max}"
        return None


def pull_limits(settings: ConsumerSettings, owned_of_topic: int, owned: int = 0) -> PullLimits:
    """Return the limits of each queue of a topic of which we own so many, and so many in all."""
    count_max, mib_max = settings.pull_threshold_for_queue, settings.pull_threshold_mib_for_queue
    if owned_of_topic:
        if settings.pull_threshold_for_topic != -1:
            count_max = max(1, settings.pull_threshold_for_topic // owned_of_topic)
        if settings.pull_threshold_mib_for_topic != -1:
            mib_max = max(1, settings.pull_threshold_mib_for_topic // owned_of_topic)
    if settings.pull_threshold_for_all != -1 and owned:
        count_max = min(count_max, max(1, settings.pull_threshold_for_all // owned))
    return PullLimits(count_max, mib_max, settings.span_max)
