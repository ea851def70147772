"""The configuration of a FastStream broker, its subscribers and its publishers; its acknowledgement policy,
and its log.
"""

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.middlewares import AckPolicy

from libramq.integrations.faststream.message import decode, parse_message
from libramq.integrations.faststream.producer import Connection

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo


@dataclass(kw_only=True)
class RocketMQBrokerConfig(BrokerConfig):
    """The configuration of a broker."""

    connection: Connection = field(default_factory=Connection)


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    """The configuration of a subscriber. options: those of PushConsumer."""

    _outer_config: RocketMQBrokerConfig = field(default_factory=RocketMQBrokerConfig)
    topic: str
    group: str | None
    expression: Any = "*"
    max_workers: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parser = parse_message
        self.decoder = decode

    @property
    def ack_policy(self) -> AckPolicy:
        """Return when messages are acknowledged; by default failed ones come again, as in RocketMQ."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        policy = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if policy is EMPTY else policy


@dataclass(kw_only=True)
class RocketMQSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """The configuration of a subscriber's documentation."""

    topic: str


@dataclass(kw_only=True)
class RocketMQPublisherConfig(PublisherUsecaseConfig):
    """The configuration of a publisher."""

    _outer_config: RocketMQBrokerConfig = field(default_factory=RocketMQBrokerConfig)
    topic: str
    tags: str | None
    headers: dict[str, Any]
    reply_to: str


@dataclass(kw_only=True)
class RocketMQPublisherSpecificationConfig(PublisherSpecificationConfig):
    """The configuration of a publisher's documentation."""

    topic: str


class RocketMQLogStorage(DefaultLoggerStorage):
    """The log of a broker: its lines begin with topic and group."""

    __slots__ = ("_widths",)

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 4}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make room for a subscriber's names."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: "ContextRepo") -> "LoggerProto":
        """Return the logger."""
        logger = self._get_logger_ref()
        if logger is None:
            columns = " | ".join(f"%({name})-{width}s" for name, width in self._widths.items())
            logger = get_broker_logger(
                name="rocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=10,
                fmt=f"%(asctime)s %(levelname)-8s - {columns} | %(message_id)-10s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_log = partial(make_logger_state, default_storage_cls=RocketMQLogStorage)
LOG_LEVEL = logging.INFO
