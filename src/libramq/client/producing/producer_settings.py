"""The settings of a producer, with RocketMQ's defaults where it has them.

Upstream: client/producer/DefaultMQProducer.java, ClientConfig.java.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, TypedDict

from libramq.client.options import Within, check_numbers, instance_of
from libramq.client.producing.fault_strategy import BACK_OFF_TABLE, BackOff
from libramq.client.producing.send_request import SendSettings
from libramq.client.producing.transactions import CheckTransaction
from libramq.clock import Clock
from libramq.errors import ConfigError
from libramq.remoting.credentials import Credentials
from libramq.transport.tls import Tls

#: Turns a value into a body.
Serializer = Callable[[Any], bytes | str]


class ProducerOptions(TypedDict, total=False):
    """All options of a Producer."""

    group: str
    namesrv: str | Sequence[str] | None
    send_timeout_ms: int
    retries: int
    retry_when_not_safe: bool
    latency_fault: bool
    back_off_table: Sequence[BackOff]
    body_bytes_max: int
    compress_over_bytes: int
    default_topic_queue_nums: int
    route_refresh_ms: int
    heartbeat_ms: int
    linger_ms: float
    buffer_bytes_max: int
    check_transaction: CheckTransaction | None
    serializer: Serializer | None
    credentials: Credentials | None
    tls: Tls | None
    clock: Clock | None
    randomness: random.Random | None


#: Ours: the default group.
GROUP: Final = "LIBRA_PRODUCER"
#: DefaultMQProducer.sendMsgTimeout.
SEND_TIMEOUT_MS: Final = 3_000
#: DefaultMQProducer.retryTimesWhenSendFailed.
RETRIES: Final = 2
#: ClientConfig.pollNameServerInterval.
ROUTE_REFRESH_MS: Final = 30_000
#: ClientConfig.heartbeatBrokerInterval.
HEARTBEAT_MS: Final = 30_000
#: ProduceAccumulator.totalHoldSize.
BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(SendSettings):
    """The settings of a producer; see `Producer`. Raises ConfigError for invalid values."""

    client_id: str
    send_timeout_ms: Annotated[int, Within(1)] = SEND_TIMEOUT_MS
    retries: Annotated[int, Within(0)] = RETRIES
    retry_when_not_safe: bool = False
    latency_fault: bool = False
    back_off_table: Sequence[BackOff] = BACK_OFF_TABLE
    route_refresh_ms: Annotated[int, Within(1)] = ROUTE_REFRESH_MS
    heartbeat_ms: Annotated[int, Within(1)] = HEARTBEAT_MS
    linger_ms: float = 1
    buffer_bytes_max: Annotated[int, Within(1)] = BUFFER_BYTES_MAX

    def __post_init__(self) -> None:
        check_numbers(self)
        instance_of("retry_when_not_safe", self.retry_when_not_safe, bool, "True or False")
        instance_of("latency_fault", self.latency_fault, bool, "True or False")
        instance_of("back_off_table", self.back_off_table, Sequence, "a sequence of BackOff(…)")
        for each in self.back_off_table:
            instance_of("an entry of back_off_table", each, BackOff, "a BackOff(…)")
        linger_ms = self.linger_ms
        if isinstance(linger_ms, bool) or not isinstance(linger_ms, int | float) or not linger_ms >= 0:
            raise ConfigError(f"linger_ms is a number of milliseconds, 0 or more, not {linger_ms!r}")


def settings_of(options: ProducerOptions) -> ProducerSettings:
    """Return the settings among a producer's options; each start sets the client id (`Identity`)."""
    known = {each.name for each in fields(ProducerSettings)}
    found: dict[str, Any] = {name: value for name, value in options.items() if name in known}
    return ProducerSettings(client_id="", **found)
