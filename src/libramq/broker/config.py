"""The broker's configuration, under Apache's names (BrokerConfig, MessageStoreConfig, NettyServerConfig).

`broker_conf.py` reads it from a file, of which docs/configuration.md has a generated table.
"""

from dataclasses import dataclass, field, fields
from typing import Final

from libramq.broker.message_store_config import MESSAGE_BYTES_MAX
from libramq.broker.name_server_config import NameServerConfig
from libramq.broker.option import option
from libramq.broker.role import check_role
from libramq.catalog.topic_attributes import BATCH_QUEUES, SIMPLE_QUEUES
from libramq.catalog.topic_table import QUEUES_MAX
from libramq.errors import ConfigError
from libramq.formats.tables import PERM_INHERIT, PERM_READ, PERM_WRITE
from libramq.message.names import validate_name
from libramq.remoting.credentials import Credentials
from libramq.transport.bind import check_announced

#: A broker answers old clients at a second port, so far below its own (MixAll.brokerVIPChannel).
VIP_DISTANCE: Final = 2
#: MetricsExporterType, by name or number; Apache's others (OTLP_GRPC, LOG) are not supported.
METRICS_OFF: Final = ("DISABLE", "0")
METRICS_SERVED: Final = ("PROM", "2")
#: The bounds of numbers, by our names; without an entry, one or more.
_BOUNDS: Final = {
    "access_message_in_memory_max_ratio": (-1, 100),
    "broker_id": (0, 1 << 62),
    "listen_port": (1, 65_535),
    "ha_listen_port": (0, 65_535),
    "kafka_listen_port": (0, 65_535),
    "kafka_member_grace_ms": (0, 60_000),
    # 100: never. Apache takes 10 to 95, 30 to 85 and 35 to 90, whatever is written.
    "disk_max_used_space_ratio": (10, 100),
    "disk_space_clean_forcibly_ratio": (30, 100),
    "disk_space_warning_level_ratio": (35, 100),
    "timer_roll_window_slot": (2, 7 * 24 * 3600 - 60),  # TIMER_WHEEL_TTL_DAY, TIMER_BLANK_SLOTS.
    "timer_max_delay_sec": (1, 2**31 - 1),
    "timer_log_file_bytes": (1 << 10, 1 << 30),
    "max_hash_slot_num": (1, 1 << 28),  # Together less than what Java maps.
    "max_index_num": (2, 1 << 26),
    "metrics_port": (1, 65_535),
    "default_topic_queue_nums": (1, QUEUES_MAX),
    "broker_permission": (0, PERM_READ | PERM_WRITE | PERM_INHERIT),
    "max_message_size": (1, MESSAGE_BYTES_MAX),
}
#: AuthConfig.innerClientAuthenticationCredentials.
CREDENTIALS_OPTION: Final = "innerClientAuthenticationCredentials"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(NameServerConfig):
    """The options of a broker. Apache's names stand beside ours; defaults are Apache's unless noted."""

    broker_name: str = option(
        "broker-a", "brokerName", "The broker's name; one for each master of a cluster."
    )
    cluster_name: str = option("DefaultCluster", "brokerClusterName", "The cluster that the broker joins.")
    broker_id: int = option(
        0, "brokerId", "0: a master. From 1 on: a slave of the master with the same `brokerName`."
    )
    broker_ip: str = option(  # Ours: Apache's is the machine's first address.
        "127.0.0.1",
        "brokerIP1",
        "The IP address for clients: it is registered at the name servers and stored in records.",
    )
    bind_address: str = option(  # Ours: Apache's is 0.0.0.0.
        "127.0.0.1",
        "bindAddress",
        "The address to listen on; without it, a `brokerIP1` that only this machine reaches. One that other "
        "machines can reach also needs `allowPublic=true`, and `innerClientAuthenticationCredentials` where "
        "there are name servers.",
    )
    allow_public: bool = option(  # Ours alone.
        False,
        "allowPublic",
        "Allow a `bindAddress` that other machines can reach. Clients are not authenticated.",
    )
    listen_port: int = option(
        10911,
        "listenPort",
        "The port to listen on. Old clients use a second one, two below it (the VIP channel).",
    )
    kafka_listen_port: int = option(  # Ours alone.
        0, "kafkaListenPort", "The port for Kafka's clients; 0: none. See [Kafka clients](kafka.md)."
    )
    kafka_advertised: str = option(  # Ours alone; Kafka: advertised.listeners.
        "",
        "kafkaAdvertised",
        "The address HOST:PORT at which Kafka's clients reach this broker; default: `brokerIP1` and "
        "`kafkaListenPort`.",
    )
    kafka_queue_type: str = option(  # Ours alone.
        SIMPLE_QUEUES,
        "kafkaQueueType",
        "The `queue.type` of topics that Kafka's clients create without naming one: SimpleCQ, or BatchCQ to "
        "[keep batches as they are](kafka.md#topics-that-keep-batches-as-they-are).",
    )
    kafka_member_grace_ms: int = option(  # Ours alone.
        150,
        "kafkaMemberGraceMs",
        "How long a dynamic member of a Kafka group may be without a connection, in ms; 0: as long as its "
        "session.",
    )
    auto_create_topic_enable: bool = option(
        True, "autoCreateTopicEnable", "Create a topic when the first message is sent to it."
    )
    auto_create_subscription_group: bool = option(
        True, "autoCreateSubscriptionGroup", "Create a consumer group when its first member connects."
    )
    abandon_unread_queues: bool = option(  # Ours alone.
        False,
        "abandonUnreadQueues",
        "Let `updateTopic` reduce the queues to read although groups have unread messages in the others, "
        "which nobody reads any more.",
    )
    default_topic_queue_nums: int = option(
        8, "defaultTopicQueueNums", "The most queues that a topic gets when it is created by a send."
    )
    broker_permission: int = option(
        6,
        "brokerPermission",
        "What the broker allows: 2 sends, 4 pulls, 6 both. Set 4 some time before you shut it down.",
    )
    flush_consumer_offset_interval_ms: int = option(
        5_000,
        "flushConsumerOffsetInterval",
        "How often committed offsets are written to `consumerOffset.json`, in ms. Between two writes they "
        "are in a journal, which survives a kill.",
    )
    long_polling_enable: bool = option(
        True, "longPollingEnable", "Hold a pull that finds no message until one arrives or its time is up."
    )
    short_polling_time_ms: int = option(
        1_000, "shortPollingTimeMills", "How long a pull is held when `longPollingEnable` is false, in ms."
    )
    enable_property_filter: bool = option(  # Ours: Apache's is false.
        True,
        "enablePropertyFilter",
        "Serve SQL92 filters. Apache's broker refuses them by default; with `false` this one does too.",
    )
    filter_support_retry: bool = option(
        False,
        "filterSupportRetry",
        "If a group subscribes to its retry topic by SQL92, filter each message by the filter of its "
        "original topic. Java's consumers read their retry topics unfiltered.",
    )
    reject_transaction_message: bool = option(
        False, "rejectTransactionMessage", "Refuse transactional messages."
    )
    transaction_timeout_ms: int = option(
        6_000,
        "transactionTimeOut",
        "How old a half message must be before its producer is asked for the transaction's state, in ms.",
    )
    transaction_check_max: int = option(
        15,
        "transactionCheckMax",
        "How many times producers are asked; then the message is moved to `TRANS_CHECK_MAX_TIME_TOPIC`.",
    )
    transaction_check_interval_ms: int = option(
        30_000, "transactionCheckInterval", "How often the broker checks for such messages, in ms."
    )
    orderly_lock_grace_ms: int = option(  # Ours; 60000 is Apache's patience.
        150,
        "orderlyLockGraceMillis",
        "How long queue locks stay, in ms, when their orderly consumer disappears without "
        "unlocking. Apache's broker takes 60,000.",
    )
    metrics_exporter_type: str = option(
        "DISABLE", "metricsExporterType", "`PROM` (or 2) serves metrics for Prometheus."
    )
    metrics_port: int = option(5557, "metricsPromExporterPort", "The port of the metrics.")
    metrics_host: str = option(  # Ours: Apache's is brokerIP1.
        "127.0.0.1", "metricsPromExporterHost", "The address of the metrics."
    )
    region_id: str = option("DefaultRegion", "regionId", "The region that messages and replies name.")
    trace_on: bool = option(True, "traceOn", "Allow clients to trace messages.")
    store_replies: bool = option(True, "storeReplyMessageEnable", "Store replies to clients' requests, too.")
    credentials: Credentials | None = field(  # Not in the repr.
        default=None,
        repr=False,
        metadata={
            "name": CREDENTIALS_OPTION,
            "about": "The credentials with which the brokers of a cluster sign requests to each other: "
            '`{"accessKey":"…","secretKey":"…"}`, the same at all of them.',
        },
    )
    #: An operator's decision about a damaged store, for one start: in a file, it would remain.
    damaged: str | None = None

    def __post_init__(self) -> None:
        validate_name("brokerName", self.broker_name)
        validate_name("brokerClusterName", self.cluster_name)
        check_role(self)
        self.check_store()
        _ = self.ha_networks
        if self.damaged not in (None, "skip", "cut"):
            raise ConfigError(f"damaged {self.damaged!r}; skip or cut is allowed")
        if self.kafka_queue_type not in (SIMPLE_QUEUES, BATCH_QUEUES):
            raise ConfigError(
                f"kafkaQueueType {self.kafka_queue_type!r}; {SIMPLE_QUEUES} or {BATCH_QUEUES} is allowed"
            )
        if self.metrics_exporter_type not in (*METRICS_OFF, *METRICS_SERVED):
            raise ConfigError(
                f"metricsExporterType {self.metrics_exporter_type!r}; DISABLE or PROM is allowed"
            )
        for each in fields(self):
            low, high = _BOUNDS.get(each.name, (1, 1 << 62))
            value = getattr(self, each.name)
            if type(value) is int and not low <= value <= high:
                allowed = f"{low} to {high}" if high < 1 << 62 else f"{low} or more"
                raise ConfigError(f"{each.metadata['name']} {value}; {allowed} is allowed")
        check_announced(self.broker_ip, "brokerIP1")
        if any(ord(character) <= ord(" ") for character in self.region_id):
            raise ConfigError(
                f"regionId {self.region_id!r} has blanks or control characters; records hold it"
            )

    @property
    def asks_slaves(self) -> bool:
        """Return whether slaves may have acted for this master while it was gone."""
        return self.enable_slave_acting_master and not self.is_slave and bool(self.namesrv_addr)

    @property
    def client_ports(self) -> tuple[int, ...]:
        """The ports that clients are answered at."""
        port = self.listen_port
        return (port, port - VIP_DISTANCE) if port > VIP_DISTANCE else (port,)

    @property
    def address(self) -> str:
        """Return the address that the name server passes to clients."""
        return f"{self.broker_ip}:{self.listen_port}"

    @property
    def serves_metrics(self) -> bool:
        """Return whether metrics are served for Prometheus."""
        return self.metrics_exporter_type in METRICS_SERVED
