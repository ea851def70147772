"""The options of `format("rocketmq")`, named and meant as in Spark's Kafka source where it has them.

subscribe             topics, separated by commas
namesrv               name servers, "host:port;host:port"; else $NAMESRV_ADDR, else 127.0.0.1:9876
startingOffsets       earliest, latest, or JSON {"TOPIC:BROKER:QUEUE": offset}; for a batch earliest,
                      for a new stream latest unless given; a stream with a checkpoint goes on from that
endingOffsets         latest or JSON; batches only
maxOffsetsPerTrigger  how many messages a micro-batch reads at most; without it all there are
failOnDataLoss        fail (true) or warn when messages to be read are gone
includeBody           whether there is a column body (true)
includeProperties     whether there is a column properties, a map (false: it costs half the speed)
minPartitions         how many tasks read at once when there is much to read; else the cores
group                 the consumer group to read as; nothing is committed
timeoutMillis         how long a broker may take to answer (10000)
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from libramq.errors import ConfigError, InvalidName
from libramq.message.names import validate_group, validate_topic
from libramq.spark.positions import Boundary
from libramq.transport.address import split_name_servers

NAMESRV_DEFAULT: Final = "127.0.0.1:9876"
TIMEOUT_MS_DEFAULT: Final = 10_000
TIMEOUT_MS_MAX: Final = 600_000
PARTITIONS_MAX: Final = 10_000
# Known to every broker without being created; the admin tools read with it too.
GROUP_DEFAULT: Final = "TOOLS_CONSUMER"

KNOWN: Final = (
    "subscribe",
    "namesrv",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeBody",
    "includeProperties",
    "minPartitions",
    "group",
    "timeoutMillis",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a reader was asked for; plain values, so that it travels to workers."""

    topics: tuple[str, ...]
    namesrv: tuple[str, ...]
    starting: Boundary | None = None
    ending: Boundary = field(default_factory=lambda: Boundary(default="latest", by_queue={}))
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    include_body: bool = True
    include_properties: bool = False
    parallelism: int = 2
    group: str = GROUP_DEFAULT
    timeout_ms: int = TIMEOUT_MS_DEFAULT

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "SourceOptions":
        """Read the options; ConfigError says which one is wrong and what would be right."""
        options = {name.lower(): str(value) for name, value in given.items()}
        known = {name.lower(): name for name in KNOWN}
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {known[near[0]]}?" if near else f"there are: {', '.join(KNOWN)}"
                raise ConfigError(f"format rocketmq has no option {name}; {hint}")
        if "subscribe" not in options:
            raise ConfigError('format rocketmq needs .option("subscribe", "TOPIC[,TOPIC…]")')
        starting = options.get("startingoffsets")
        ending = Boundary.parse(
            options.get("endingoffsets", "latest"), option="endingOffsets", default="latest"
        )
        if ending.default == "earliest":
            raise ConfigError("endingOffsets=earliest would read nothing; give latest or JSON")
        limit = options.get("maxoffsetspertrigger")
        try:
            topics = tuple(sorted({validate_topic(name) for name in _list(options["subscribe"])}))
            group = validate_group(options.get("group", GROUP_DEFAULT))
        except InvalidName as error:
            raise ConfigError(f"format rocketmq: {error}") from None
        namesrv = options.get("namesrv") or os.environ.get("NAMESRV_ADDR") or NAMESRV_DEFAULT
        if not topics:
            raise ConfigError("format rocketmq: subscribe names no topic")
        return cls(
            topics=topics,
            namesrv=split_name_servers(namesrv),
            starting=None
            if starting is None
            else Boundary.parse(starting, option="startingOffsets", default="earliest"),
            ending=ending,
            max_offsets_per_trigger=None
            if limit is None
            else _number("maxOffsetsPerTrigger", limit, 1, (1 << 63) - 1),
            fail_on_data_loss=_flag("failOnDataLoss", options, default=True),
            include_body=_flag("includeBody", options, default=True),
            include_properties=_flag("includeProperties", options, default=False),
            parallelism=_number(
                "minPartitions", options.get("minpartitions", str(os.cpu_count() or 2)), 1, PARTITIONS_MAX
            ),
            group=group,
            timeout_ms=_number(
                "timeoutMillis", options.get("timeoutmillis", str(TIMEOUT_MS_DEFAULT)), 1, TIMEOUT_MS_MAX
            ),
        )

    def starting_or(self, default: Boundary) -> Boundary:
        """Batches begin at the earliest message unless told otherwise, streams at the latest."""
        return default if self.starting is None else self.starting


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _flag(name: str, options: Mapping[str, str], *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={text!r}: give true or false")
    return text.lower() == "true"


def _number(name: str, text: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ConfigError(f"{name}={text!r}: give a number from {least} to {most}")
    return number
