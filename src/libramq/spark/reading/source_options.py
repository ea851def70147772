"""The options of `spark.read.format("rocketmq")`: names (from Spark's Kafka source where it has the same
option), defaults and bounds.

What to read, exactly one of
  subscribe             topics, separated by commas
  subscribePattern      a regular expression (Python's) that a topic's whole name must match
  assign                queues: {"Flights": {"broker-a": [0, 1]}}
From where
  namesrv               name servers, "host:port;host:port"; by default $NAMESRV_ADDR, else 127.0.0.1:9876
  store                 a broker's store directory or a copy of it, read without a broker; batches only
  storeCommitLog        the directory of that store's commit log, if the broker sets storePathCommitLog
  storeBroker           the broker name in the rows of a store ("store")
Start and end: startingTimestamp takes precedence over startingOffsetsByTimestamp, and that over
startingOffsets; likewise for ending, as in Spark's Kafka source. Unlike there, JSON may omit queues: they are
read from their beginning, or to their end. -2 is the earliest message of a queue, -1 its end
  startingOffsets       earliest, latest, JSON; earliest for a batch, latest for a new stream
  startingOffsetsByTimestamp, startingTimestamp, startingOffsetsByTimestampStrategy (error, latest)
                        times are milliseconds; the timestamps may also be ISO 8601 with a zone
  endingOffsets         latest, JSON; batches only, like the next two
  endingOffsetsByTimestamp, endingTimestamp
Size of a micro-batch; streams only
  maxOffsetsPerTrigger  the most messages that a micro-batch reads; by default all
  maxBytesPerTrigger    approximately the most bytes of stored messages: 500k, 64m, 2g
  minOffsetsPerTrigger  wait until this many messages have arrived, but not longer than maxTriggerDelay
  maxTriggerDelay       see minOffsetsPerTrigger (15m)
Number of tasks
  minPartitions         at least this many tasks, if there are as many messages; by default one per core,
                        and one if there is little to read
  maxRecordsPerPartition  no task reads more than this many messages
Output
  columns               column names, separated by commas; other columns cost nothing; like .schema(…)
  includeBody           whether there is a column body (true)
  includeHeaders        whether there is a column properties, a map (false: it costs half the speed)
  tags                  "TagA || TagB": brokers skip all other messages
  sql                   an SQL92 expression over properties; Apache's brokers need enablePropertyFilter
  pushdown              a batch query's filters on topic, broker, queueId, offset and timestamp limit what
                        is read (false); needs spark.sql.python.filterPushdown.enabled=true
  failOnDataLoss        fail (true) or warn when messages or queues to be read, or their brokers, are gone
  requiredBrokers       brokers, separated by commas, that must be registered when a batch query is planned
Groups
  groupId               the consumer group in the brokers' requests (TOOLS_CONSUMER); nothing is committed
  groupIdPrefix         without groupId: the group is the prefix and a digest of the subscription
  commitGroupId         commit the positions after each micro-batch for this group, for tools that show lag;
                        never read back, and refused if the group has members
Timeouts
  brokerTimeout         how long a broker may be down before a query fails (60s)
  rocketmq.mqClientApiTimeout     milliseconds for one response (10000)
  rocketmq.connectTimeoutMillis   milliseconds for a connection (3000)
Servers with authentication or TLS; files are PEM, at the same path on every machine
  rocketmq.accessKey, rocketmq.secretKey, rocketmq.securityToken   sign requests (ACL)
  rocketmq.tls.enable                   true: encrypt connections to name servers and brokers (false)
  rocketmq.tls.client.trustCertPath     trusted authorities; by default the system's
  rocketmq.tls.client.certPath, rocketmq.tls.client.keyPath, rocketmq.tls.client.keyPassword   our own
  rocketmq.tls.verify                   check of server certificates: full, ca (not the name), none (full)
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from libramq.errors import ConfigError, InvalidName
from libramq.filter.tag import parse_tag_filter
from libramq.message.names import validate_group
from libramq.message.queue import MessageQueue
from libramq.spark.options import ACCESS, Options, milliseconds
from libramq.spark.reading.positions import Bounds, Positions, numbers_by_queue, queue_key
from libramq.spark.reading.subscription import Subscription
from libramq.spark.schema import COLUMNS
from libramq.transport.access import CONNECT_TIMEOUT_MS

if TYPE_CHECKING:
    from libramq.transport.access import Access

TIMEOUT_MS_DEFAULT: Final = 10_000  # Ours: a pull may have to wait for the broker's disk.
TIMEOUT_MS_MAX: Final = 600_000
BROKER_TIMEOUT_MS: Final = 60_000  # Ours: Apache's broker takes half a minute to restart after a kill.
TRIGGER_DELAY_MS: Final = 15 * 60_000  # KafkaSourceProvider, DEFAULT_MAX_TRIGGER_DELAY.
PARTITIONS_MAX: Final = 10_000
#: Every broker has this group without creation; the admin tools also use it.
GROUP_DEFAULT: Final = "TOOLS_CONSUMER"

EARLIEST: Final = -2  # As in Spark's Kafka source.
LATEST: Final = -1
_KEYWORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS: Final = (
    'earliest, latest, or JSON like {"Flights": {"broker-a": {"0": 120, "1": -2}}} (-2 earliest, -1 latest)'
)
_TIMES: Final = 'JSON with milliseconds since 1970, like {"Flights": {"broker-a": {"0": 1700000000000}}}'

#: Returns for each queue the offset of the first message stored at or after its time, or the queue's end if
#: there is no such message.
OffsetsAt = Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, int]]
Side = Literal["starting", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Offsets by queue, times by queue, or one time for all; other queues are at `default`.

    strategy: for a starting time after the last message: `error`, or `latest` (the end).
    """

    side: Side
    default: int
    offsets: Positions = field(default_factory=dict)
    times_ms: Mapping[MessageQueue, int] = field(default_factory=dict)
    time_ms: int | None = None
    strategy: str = "error"

    @classmethod
    def parse(cls, options: Options, side: Side) -> "Boundary | None":
        """Parse the options of one side; None if there are none."""
        default = EARLIEST if side == "starting" else LATEST
        strategy = "latest"  # An ending time after the last message means the queue's end.
        if side == "starting":
            strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        time_ms = options.time_ms(f"{side}Timestamp")
        times, offsets = options.text(f"{side}OffsetsByTimestamp"), options.text(f"{side}Offsets")
        if time_ms is not None:
            return cls(side=side, default=default, time_ms=time_ms, strategy=strategy)
        if times is not None:
            option = f"{side}OffsetsByTimestamp"
            by_queue = numbers_by_queue(times, option=option, least=0, allowed=_TIMES)
            for each_ms in by_queue.values():
                milliseconds(option, each_ms)
            return cls(side=side, default=default, times_ms=by_queue, strategy=strategy)
        if offsets is None:
            return None
        keyword = _KEYWORDS.get(offsets.strip().lower())
        if keyword is not None:
            return cls(side=side, default=keyword)
        by_queue = numbers_by_queue(offsets, option=f"{side}Offsets", least=EARLIEST, allowed=_OFFSETS)
        return cls(side=side, default=default, offsets=by_queue)

    def refuse(self, offset: int, why: str) -> None:
        """Raise ConfigError if this boundary uses `offset` (earliest or latest), which it must not."""
        if self.default == offset or offset in self.offsets.values():
            text = "earliest (-2)" if offset == EARLIEST else "latest (-1)"
            raise ConfigError(f"{self.side}Offsets={text}: {why}")

    def resolve(
        self, bounds: Mapping[MessageQueue, Bounds], offsets_at: OffsetsAt
    ) -> dict[MessageQueue, int]:
        """Return the positions in these queues. bounds: must be queried before any times are."""
        named = self.offsets.keys() | self.times_ms.keys()
        unknown = sorted(named - bounds.keys())
        if unknown:
            raise ConfigError(
                f"{self._option} names {queue_key(unknown[0])}, which is not a queue that is read; there are "
                f"{', '.join(queue_key(queue) for queue in sorted(bounds)[:8])}"
            )
        resolved = {}
        for queue, bound in bounds.items():
            wanted = self.offsets.get(queue, self.default)
            resolved[queue] = {EARLIEST: bound.minimum, LATEST: bound.maximum}.get(wanted, wanted)
            if resolved[queue] > bound.maximum:
                raise ConfigError(
                    f"{self._option}: queue {queue_key(queue)} ends at {bound.maximum}, {wanted} is beyond"
                )
        times_ms = dict(self.times_ms) if self.time_ms is None else dict.fromkeys(bounds, self.time_ms)
        for queue, offset in offsets_at(times_ms).items() if times_ms else ():
            if offset >= bounds[queue].maximum and self.strategy == "error":
                raise ConfigError(
                    f"{self._option}: queue {queue_key(queue)} has no message stored at {times_ms[queue]} ms "
                    "or later; give an earlier time, or startingOffsetsByTimestampStrategy=latest"
                )
            resolved[queue] = max(bounds[queue].minimum, min(offset, bounds[queue].maximum))
        return resolved

    @property
    def _option(self) -> str:
        if self.time_ms is not None:
            return f"{self.side}Timestamp"
        return f"{self.side}OffsetsByTimestamp" if self.times_ms else f"{self.side}Offsets"


KNOWN: Final = (
    "subscribe", "subscribePattern", "assign", "namesrv", "store", "storeBroker", "storeCommitLog",
    "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp",
    "startingOffsetsByTimestampStrategy", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "columns", "includeBody", "includeHeaders", "tags", "sql", "pushdown",
    "failOnDataLoss", "requiredBrokers", "groupId", "groupIdPrefix", "commitGroupId", "brokerTimeout",
    "rocketmq.mqClientApiTimeout", "rocketmq.connectTimeoutMillis", *ACCESS,
)  # fmt: skip
_OF_BATCHES: Final = (
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "store",
    "pushdown",
    "requiredBrokers",
)
_OF_STREAMS: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_EARLIEST: Final = Boundary(side="starting", default=EARLIEST)
_ENDING_LATEST: Final = Boundary(side="ending", default=LATEST)
_LATEST: Final = Boundary(side="starting", default=LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The addresses and access of the servers; hashable, because it is the key of cached connections."""

    namesrv: tuple[str, ...]
    group: str = GROUP_DEFAULT
    tags: str | None = None
    sql: str | None = None
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    retry_timeout_ms: int = BROKER_TIMEOUT_MS
    access: "Access | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a reader; plain values that can be sent to workers."""

    subscription: Subscription
    connection: Connection
    starting: Boundary | None = None
    ending: Boundary = _ENDING_LATEST
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    required_brokers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    pushdown: bool = False
    commit_group: str | None = None
    store: str | None = None
    store_broker: str = "store"
    store_commit_log: str | None = None
    of_batches: tuple[str, ...] = ()
    of_streams: tuple[str, ...] = ()

    @classmethod
    def parse(cls, raw_options: Mapping[str, str]) -> "SourceOptions":
        """Parse the options; ConfigError names the invalid option and the allowed values."""
        options = Options(raw_options, KNOWN)
        subscription = Subscription.parse(options)
        if "store" in options and "namesrv" in options:
            raise ConfigError("store reads a directory and namesrv reads from servers; set only one of them")
        if "storeCommitLog" in options and "store" not in options:
            raise ConfigError(
                "storeCommitLog is the log of a store; also set store to the broker's directory"
            )
        if "store" in options and ("tags" in options or "sql" in options):
            raise ConfigError(
                "tags and sql are filters of brokers; for a store, filter the column tag or properties"
            )
        parsed = cls(
            subscription=subscription,
            connection=_connection(options, subscription),
            starting=Boundary.parse(options, "starting"),
            ending=Boundary.parse(options, "ending") or _ENDING_LATEST,
            max_offsets_per_trigger=options.number("maxOffsetsPerTrigger"),
            max_bytes_per_trigger=options.size("maxBytesPerTrigger"),
            min_offsets_per_trigger=options.number("minOffsetsPerTrigger"),
            max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
            min_partitions=options.number("minPartitions", 1, PARTITIONS_MAX),
            max_records_per_partition=options.number("maxRecordsPerPartition"),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            required_brokers=_names(options.text("requiredBrokers")),
            columns=_columns(options),
            pushdown=options.flag("pushdown", default=False),
            commit_group=_group(options, "commitGroupId"),
            store=options.text("store"),
            store_broker=options.text("storeBroker") or "store",
            store_commit_log=options.text("storeCommitLog"),
            of_batches=tuple(name for name in _OF_BATCHES if name in options),
            of_streams=tuple(name for name in _OF_STREAMS if name in options),
        )
        parsed.ending.refuse(EARLIEST, "that would read nothing; give latest or JSON")
        low, high = parsed.min_offsets_per_trigger, parsed.max_offsets_per_trigger
        if low is not None and high is not None and low > high:
            raise ConfigError(f"minOffsetsPerTrigger={low} is above maxOffsetsPerTrigger={high}")
        return parsed

    def check_batch(self) -> None:
        """Raise ConfigError for options that make no sense in a batch query."""
        if self.of_streams:
            raise ConfigError(
                f"{self.of_streams[0]} is for streaming queries (spark.readStream), this is a batch; "
                "endingOffsets bounds it"
            )
        if self.starting is not None:
            self.starting.refuse(
                LATEST, "a batch query begins at messages that are there; give earliest or JSON"
            )

    def check_stream(self) -> None:
        """Raise ConfigError for options that make no sense in a streaming query."""
        if self.of_batches:
            raise ConfigError(
                f"{self.of_batches[0]} is for batch queries (spark.read), this is a streaming one"
            )

    @property
    def starting_batch(self) -> Boundary:
        """Return the beginning of a batch: by default the earliest message."""
        return self.starting or _EARLIEST

    @property
    def starting_stream(self) -> Boundary:
        """Return the beginning of a new stream: by default the latest message."""
        return self.starting or _LATEST


def _connection(options: Options, subscription: Subscription) -> Connection:
    tags, sql = options.text("tags"), options.text("sql")
    if tags is not None and sql is not None:
        raise ConfigError("tags and sql: brokers accept only one of them")
    parse_tag_filter(tags)
    group = _group(options, "groupId")
    if group is None and (prefix := _group(options, "groupIdPrefix")) is not None:
        # The same after restarts: brokers remember every group they have seen.
        group = f"{prefix}-{hashlib.sha256(str(subscription).encode()).hexdigest()[:8]}"
    return Connection(
        namesrv=options.namesrv(),
        group=group or GROUP_DEFAULT,
        tags=None if tags == "*" else tags,
        sql=sql,
        timeout_ms=options.number("rocketmq.mqClientApiTimeout", 1, TIMEOUT_MS_MAX) or TIMEOUT_MS_DEFAULT,
        connect_timeout_ms=options.number("rocketmq.connectTimeoutMillis", 1, TIMEOUT_MS_MAX)
        or CONNECT_TIMEOUT_MS,
        retry_timeout_ms=options.duration_ms("brokerTimeout", BROKER_TIMEOUT_MS),
        access=options.access(),
    )


def _columns(options: Options) -> tuple[str, ...]:
    """Return the columns of the table, unless a schema selects some."""
    chosen = options.text("columns")
    body = options.flag("includeBody", default=True)
    headers = options.flag("includeHeaders", default=False)
    if chosen is None:
        left_out = {name for name, wanted in (("body", body), ("properties", headers)) if not wanted}
        return tuple(name for name in COLUMNS if name not in left_out)
    if "includeBody" in options or "includeHeaders" in options:
        raise ConfigError("columns names all columns: leave includeBody and includeHeaders out")
    names = tuple(dict.fromkeys(name.strip() for name in chosen.split(",") if name.strip()))
    for name in names or ("",):
        if name not in COLUMNS:
            raise ConfigError(
                f"columns={chosen!r}: there is no column {name!r}; there are {', '.join(COLUMNS)}"
            )
    return names


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in (text or "").split(",") if name.strip()}))


def _group(options: Options, name: str) -> str | None:
    text = options.text(name)
    if text is None:
        return None
    try:
        return validate_group(text)
    except InvalidName as error:
        raise ConfigError(f"{name}={text!r}: {error}") from None
