"""Delays: messages that wait for a delay level, or until a time."""

from libramq.broker.features.feature import Base, Feature
from libramq.broker.messages.delivery import Delivery
from libramq.broker.messages.timer_delivery import TimerDelivery
from libramq.broker.processor.messages.timer_requests import TimerRequests


class DelayFeature(Feature):
    """Delivers messages when they are due; where slaves are asked, not before they have answered."""

    def __init__(self, base: Base) -> None:
        config, files, kernel = base.config, base.files, base.kernel
        is_held = config.asks_slaves
        self.levels = Delivery(files.schedule, files.store, kernel, is_held=is_held)
        self.timers = TimerDelivery(files.timers, files.store, kernel, is_held=is_held)
        self.topic_listeners = [self.levels, self.timers]
        requests = TimerRequests(
            files=files.timers,
            log=files.log,
            topics=base.topics,
            broker_name=config.broker_name,
            recall_enabled=config.recall_message_enable,
            max_delay_ms=config.timer_max_delay_sec * 1000,
        )
        self.services = [requests]

    def close(self) -> None:
        """Finish what is being delivered."""
        self.timers.close()
