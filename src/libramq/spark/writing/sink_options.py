"""The options and columns of writing `format("rocketmq")`: names, types, defaults and bounds.

Columns, in any order; only body is required
  body         binary or string
  topic        string; if the option topic is not set
  key          string: the message's keys, separated by spaces
  tag          string
  properties   map<string,string>: the user's own
  uniqueId     string: the message's unique id; by default derived from query, batch, task and row
  delayLevel   int: 1 (one second) to 18 (two hours); 0 for none
Options
  topic        the topic of all messages; takes precedence over the column
  namesrv      name servers, "host:port;host:port"; by default $NAMESRV_ADDR, else 127.0.0.1:9876
  queueBy      any: queues take turns; key: messages of one key go to one queue (any)
  delayLevel   the delay level of all messages; takes precedence over the column
  groupId      the producer group (LIBRA_SPARK)
  rocketmq.sendMsgTimeout                 milliseconds for a broker to store a batch (30000); at its start, a
                                          task waits as long for absent name servers and brokers
  rocketmq.retryTimesWhenSendFailed       further attempts, at other brokers unless the queue is fixed (2)
  rocketmq.compressMsgBodyOverHowmuch     compress bodies of single messages from this many bytes (4096)
Servers with authentication or TLS; files are PEM, at the same path on every machine
  rocketmq.accessKey, rocketmq.secretKey, rocketmq.securityToken   sign requests (ACL)
  rocketmq.tls.enable                   true: encrypt connections to name servers and brokers (false)
  rocketmq.tls.client.trustCertPath     trusted authorities; by default the system's
  rocketmq.tls.client.certPath, rocketmq.tls.client.keyPath, rocketmq.tls.client.keyPassword   our own
  rocketmq.tls.verify                   check of server certificates: full, ca (not the name), none (full)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from libramq.errors import ConfigError, InvalidName
from libramq.message.delay_level import DELAY_LEVEL_MAX
from libramq.message.message import BODY_BYTES_MAX
from libramq.message.names import validate_group, validate_topic
from libramq.spark.options import ACCESS, Options
from libramq.spark.reading.source_options import TIMEOUT_MS_MAX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from libramq.transport.access import Access

GROUP_DEFAULT: Final = "LIBRA_SPARK"
#: Ours, ten times Apache's default: when sending a whole micro-batch, waiting is better than failing.
SEND_TIMEOUT_MS: Final = 30_000
RETRIES: Final = 2  # DefaultMQProducer.retryTimesWhenSendFailed.
COMPRESS_OVER_BYTES: Final = 4096  # DefaultMQProducer.compressMsgBodyOverHowmuch.
RETRIES_MAX: Final = 100

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "body": ("binary", "string"),
        "topic": ("string",),
        "key": ("string",),
        "tag": ("string",),
        "properties": ("map<string,string>",),
        "uniqueId": ("string",),
        "delayLevel": ("int",),
    }
)
KNOWN: Final = (
    "topic", "namesrv", "queueBy", "delayLevel", "groupId", "rocketmq.sendMsgTimeout",
    "rocketmq.retryTimesWhenSendFailed", "rocketmq.compressMsgBodyOverHowmuch", *ACCESS, "checkpointLocation",
    "path",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a writer; plain values that can be sent to workers."""

    namesrv: tuple[str, ...]
    topic: str | None = None
    by_key: bool = False
    delay_level: int | None = None
    group: str = GROUP_DEFAULT
    send_timeout_ms: int = SEND_TIMEOUT_MS
    retries: int = RETRIES
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    access: "Access | None" = None

    @classmethod
    def parse(cls, raw_options: Mapping[str, str]) -> "SinkOptions":
        """Parse the options; ConfigError names the invalid option and the allowed values."""
        options = Options(raw_options, KNOWN)
        if "path" in options:
            raise ConfigError('format rocketmq has no path; give option("topic", "TOPIC") and save()')
        topic, group = options.text("topic"), options.text("groupId") or GROUP_DEFAULT
        try:
            validate_group(group)
            if topic is not None:
                validate_topic(topic)
        except InvalidName as error:
            raise ConfigError(f"format rocketmq: {error}") from None
        retries = options.number("rocketmq.retryTimesWhenSendFailed", 0, RETRIES_MAX)
        over_bytes = options.number("rocketmq.compressMsgBodyOverHowmuch", 1, BODY_BYTES_MAX)
        return cls(
            namesrv=options.namesrv(),
            topic=topic,
            by_key=options.choice("queueBy", ("any", "key"), "any") == "key",
            delay_level=options.number("delayLevel", 0, DELAY_LEVEL_MAX),
            group=group,
            send_timeout_ms=options.number("rocketmq.sendMsgTimeout", 1, TIMEOUT_MS_MAX) or SEND_TIMEOUT_MS,
            retries=RETRIES if retries is None else retries,
            compress_over_bytes=over_bytes or COMPRESS_OVER_BYTES,
            access=options.access(),
        )

    def check_columns(self, schema: "StructType") -> None:
        """Raise ConfigError if rows with these columns cannot be written."""
        kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        for name, kind in kinds.items():
            if kind not in COLUMNS.get(name, ()):
                there_are = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in COLUMNS.items())
                raise ConfigError(
                    f"a message has no column {name} {kind}; select or cast to some of: {there_are}"
                )
        if "body" not in kinds:
            raise ConfigError("a message needs a column body; for example to_json(struct(*)) AS body")
        if self.topic is None and "topic" not in kinds:
            raise ConfigError('no topic: give option("topic", "TOPIC") or a column topic')
        if self.by_key and "key" not in kinds:
            raise ConfigError("queueBy=key needs a column key")
