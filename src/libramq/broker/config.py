"""The broker's configuration: every option with Apache's name, its default and bounds, and the options that
contradict or need each other.

`broker_conf.py` reads it from a file; docs/configuration.md has a generated table.
"""

import ipaddress
import os
from dataclasses import dataclass, field, fields
from typing import Any, Final

from libramq.catalog.topic_attributes import BATCH_QUEUES, SIMPLE_QUEUES
from libramq.catalog.topic_table import QUEUES_MAX
from libramq.errors import ConfigError
from libramq.formats.access import UserInfo
from libramq.formats.properties_file import shown
from libramq.formats.tables import PERM_INHERIT, PERM_READ, PERM_WRITE
from libramq.message.names import validate_name
from libramq.message.properties import whole_number
from libramq.message.record import RECORD_BYTES_MAX
from libramq.remoting.credentials import Credentials
from libramq.remoting.frame import HEADER_BYTES_MAX
from libramq.store.config import IN_MEMORY_BYTES
from libramq.transport.address import check_announced, is_loopback, split_address
from libramq.transport.admission import (
    CONNECTIONS_MAX,
    PER_ADDRESS_MAX,
    UNAUTHENTICATED_MAX,
    ConnectionLimits,
)
from libramq.transport.tls_options import TlsOptions

#: MessageStoreConfig.setTimerPrecisionMs; other values are rounded there.
TIMER_PRECISIONS_MS: Final = (100, 200, 500, 1000)
#: ScheduleMessageService, MessageStoreConfig.messageDelayLevel.
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
#: A message must fit in a pull's frame, with its record and the reply's header.
MESSAGE_BYTES_MAX: Final = RECORD_BYTES_MAX - HEADER_BYTES_MAX
HOURS_A_DAY: Final = 24
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: How far the second port, for old clients, is below the broker's own (MixAll.brokerVIPChannel).
VIP_DISTANCE: Final = 2
#: MetricsExporterType, by name or number; Apache's others (OTLP_GRPC, LOG) are not supported.
METRICS_OFF: Final = ("DISABLE", "0")
METRICS_SERVED: Final = ("PROM", "2")
#: The bounds of numbers, by our names; one or more by default.
_BOUNDS: Final = {
    "access_message_in_memory_max_ratio": (-1, 100),
    "broker_id": (0, 1 << 62),
    "listen_port": (1, 65_535),
    "ha_listen_port": (0, 65_535),
    "kafka_listen_port": (0, 65_535),
    "kafka_member_grace_ms": (0, 60_000),
    # 100: never. Apache limits any value to 10 to 95, 30 to 85 and 35 to 90.
    "disk_max_used_space_ratio": (10, 100),
    "disk_space_clean_forcibly_ratio": (30, 100),
    "disk_space_warning_level_ratio": (35, 100),
    "timer_roll_window_slot": (2, 7 * 24 * 3600 - 60),  # TIMER_WHEEL_TTL_DAY, TIMER_BLANK_SLOTS.
    "timer_max_delay_sec": (1, 2**31 - 1),
    "timer_log_file_bytes": (1 << 10, 1 << 30),
    "max_hash_slot_num": (1, 1 << 28),  # Both together are below Java's limit of a mapped file.
    "max_index_num": (2, 1 << 26),
    "metrics_port": (1, 65_535),
    "default_topic_queue_nums": (1, QUEUES_MAX),
    "broker_permission": (0, PERM_READ | PERM_WRITE | PERM_INHERIT),
    "max_message_size": (1, MESSAGE_BYTES_MAX),
}
#: AuthConfig.innerClientAuthenticationCredentials.
CREDENTIALS_OPTION: Final = "innerClientAuthenticationCredentials"
#: AuthConfig.initAuthenticationUser.
INITIAL_USER_OPTION: Final = "initAuthenticationUser"
#: Options whose values are never returned.
SECRET_OPTIONS: Final = (CREDENTIALS_OPTION, INITIAL_USER_OPTION)


def option(default: Any, name: str, about: str) -> Any:
    """Return the field of an option. name: in `broker.conf`."""
    return field(default=default, metadata={"name": name, "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The options of a broker. Apache's names stand beside ours; defaults are Apache's unless noted."""

    # Name servers.

    namesrv_addr: str | None = option(
        None,
        "namesrvAddr",
        "Name servers, `HOST:PORT` separated by `;`, or the URL of a page that lists them. Default: "
        "`$NAMESRV_ADDR` or `127.0.0.1:9876`.",
    )
    fetch_namesrv_addr: bool = option(
        False,
        "fetchNamesrvAddrByAddressServer",
        "Without `namesrvAddr`: find the name servers on a page of an address server, and look again every "
        "two minutes.",
    )
    address_server_domain: str = option(  # Ours: Apache's is a host of its first authors only.
        "",
        "rmqAddressServerDomain",
        "That address server, `HOST` or `HOST:PORT`; the port is 8080 without one.",
    )
    address_server_sub_group: str = option(
        "nsaddr",
        "rmqAddressServerSubGroup",
        "The page of the address server: `http://HOST:8080/rocketmq/nsaddr` by default.",
    )
    register_name_server_period_ms: int = option(
        30_000,
        "registerNameServerPeriod",
        "How often the broker registers with all its topics, in ms, between 10,000 and 60,000.",
    )

    # The broker itself, and its clients.

    broker_name: str = option(
        "broker-a", "brokerName", "The broker's name; each master of a cluster has its own."
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
        "The address to listen on. Default: `brokerIP1`, if only this machine can reach it. An address that "
        "other machines can reach also needs `allowPublic=true`, and with name servers "
        "`innerClientAuthenticationCredentials`.",
    )
    allow_public: bool = option(  # Ours alone.
        False,
        "allowPublic",
        "Allow a `bindAddress` that other machines can reach. Clients are not authenticated by default.",
    )
    listen_port: int = option(
        10911,
        "listenPort",
        "The port to listen on. Old clients use a second one, two below it (the VIP channel).",
    )
    max_connections: int = option(  # Ours alone, as are the next two.
        CONNECTIONS_MAX,
        "maxConnections",
        "The most connections of clients, on all ports together; further ones are closed. See "
        "[Limits](security.md#limits).",
    )
    max_connections_per_address: int = option(
        PER_ADDRESS_MAX,
        "maxConnectionsPerAddress",
        "The most connections from one IPv4 address or IPv6 network (/64).",
    )
    max_unauthenticated_connections: int = option(
        UNAUTHENTICATED_MAX,
        "maxUnauthenticatedConnections",
        "With `authenticationEnabled`: the most connections of clients not yet authenticated; for one "
        "more, the oldest one of the address with the most is closed.",
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
        "Let `updateTopic` reduce the read queues even if groups have unread messages in the removed ones; "
        "those messages are never read.",
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
    orderly_lock_grace_ms: int = option(  # Ours: Apache's is 60000.
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
            '`{"accessKey":"…","secretKey":"…"}`, the same at all of them. '
            'With `"secondSecretKey":"…"` another secret is accepted, '
            "[to change over to it](secure-a-cluster.md#later-another-secret-of-the-brokers).",
        },
    )
    #: Its properties, tls.…, have their own table.
    tls: TlsOptions = field(default_factory=TlsOptions)

    # Permissions.

    authentication_enabled: bool = option(
        False,
        "authenticationEnabled",
        "Require a user's signature on every request. See [Security](security.md#users-and-policies).",
    )
    authorization_enabled: bool = option(
        False,
        "authorizationEnabled",
        "Let users do only what their policies allow. Needs `authenticationEnabled`.",
    )
    init_authentication_user: UserInfo | None = field(  # Not in the repr.
        default=None,
        repr=False,
        metadata={
            "name": INITIAL_USER_OPTION,
            "about": "A super user that is created at the start unless it exists: "
            '`{"username":"…","password":"…"}`.',
        },
    )
    authentication_whitelist: frozenset[int] = option(
        frozenset(),
        "authenticationWhitelist",
        "Codes of requests that need no signature: `105,34`.",
    )
    authorization_whitelist: frozenset[int] = option(
        frozenset(),
        "authorizationWhitelist",
        "Codes of requests that need no permission.",
    )
    authorization_dry_run: bool = option(  # Ours alone.
        False,
        "authorizationDryRun",
        "With both: log what would be refused, and refuse only changes of the cluster and its users.",
    )
    audit_enabled: bool = option(  # Ours alone.
        True,
        "auditEnabled",
        "With `authenticationEnabled`: record changes, sign-ins and refusals in the topic `LIBRA_AUDIT`. See "
        "[Security](security.md#audit).",
    )
    #: An operator's decision about a damaged store, for one start; in a file, it would outlive that start.
    damaged: str | None = None

    # Masters and slaves.

    ha_listen_port: int = option(  # Ours: Apache's is always open, at the listen port + 1.
        0,
        "haListenPort",
        "The port from which slaves copy the commit log; 0: none. Apache's is `listenPort` + 1.",
    )
    broker_role: str = option(
        "ASYNC_MASTER",
        "brokerRole",
        "`SYNC_MASTER`: a send is acknowledged when `inSyncReplicas` brokers have its message. "
        "`ASYNC_MASTER`: slaves follow. `SLAVE`: copies the master of its `brokerName`, which name servers "
        "know, and takes no messages itself.",
    )
    ha_master_address: str | None = option(
        None,
        "haMasterAddress",
        "The address from which a slave copies its master's log, `HOST:PORT`. Default: from the name "
        "servers.",
    )
    slave_read_enable: bool = option(
        False,
        "slaveReadEnable",
        "At a slave: let consumers read. At a master: send consumers that are further behind than "
        "`accessMessageInMemoryMaxRatio` to a slave (`whichBrokerWhenConsumeSlowly` of their group).",
    )
    enable_slave_acting_master: bool = option(
        False,
        "enableSlaveActingMaster",
        "While the master is gone, its slave serves queue locks and pops as well as reads and commits. Set "
        "it at master and slave, and `supportActingMaster` at the name servers.",
    )
    enable_remote_escape: bool = option(
        False,
        "enableRemoteEscape",
        "With `enableSlaveActingMaster`, at a slave: while the master is gone, due delayed and timer "
        "messages, open transactions, and popped messages not acknowledged in time are sent to other masters "
        "that have their topic.",
    )
    in_sync_replicas: int = option(
        1,
        "inSyncReplicas",
        "The number of brokers, itself included, that must have a message before a `SYNC_MASTER` "
        "acknowledges it. While too few slaves are in sync, sends are answered with SLAVE_NOT_AVAILABLE: "
        "the message is stored, but on fewer brokers. With `enableSlaveActingMaster` they are answered with "
        "SYSTEM_ERROR, and nothing is stored.",
    )
    enable_auto_in_sync_replicas: bool = option(
        False,
        "enableAutoInSyncReplicas",
        "With `enableSlaveActingMaster`, at a `SYNC_MASTER`: while fewer brokers are in sync than "
        "`inSyncReplicas`, require only those, but at least `minInSyncReplicas`.",
    )
    min_in_sync_replicas: int = option(
        1,
        "minInSyncReplicas",
        "The fewest brokers that `enableAutoInSyncReplicas` requires, itself included.",
    )
    total_replicas: int = option(
        1,
        "totalReplicas",
        "The number of brokers of this `brokerName`. If it is above 1, neither `inSyncReplicas` nor "
        "`minInSyncReplicas` may be more.",
    )
    slave_timeout_ms: int = option(
        3_000, "slaveTimeout", "How long a send waits for slaves, in ms; then it gets FLUSH_SLAVE_TIMEOUT."
    )
    ha_allowed_addresses: str = option(  # Ours alone.
        "127.0.0.0/8;::1",
        "haAllowedAddresses",
        "The addresses and networks from which slaves may connect, separated by `;`. "
        "A slave receives every message.",
    )

    # The store: files, flushes, retention.

    store_path: str = option(
        "libra-data", "storePathRootDir", "The directory of commit log, consume queues and tables."
    )
    commit_log_path: str = option(
        "",
        "storePathCommitLog",
        "The directory of the commit log, to have it on another disk. Default: `commitlog` in "
        "`storePathRootDir`. If you change it for an existing store, move the files too.",
    )
    max_message_size: int = option(
        4 * 1024 * 1024, "maxMessageSize", "The largest body of a message, in bytes."
    )
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        "flushDiskType",
        "`SYNC_FLUSH`: a send is acknowledged when its message is on the disk. `ASYNC_FLUSH`: when it is "
        "written to the page cache; a power cut may lose the messages of the last `flushIntervalCommitLog`.",
    )
    flush_interval_ms: int = option(
        500, "flushIntervalCommitLog", "How often the commit log is flushed under `ASYNC_FLUSH`, in ms."
    )
    commit_log_file_bytes: int = option(
        1 << 30,
        "mappedFileSizeCommitLog",
        "The size of a commit log file. Do not change it for a store that exists.",
    )
    consume_queue_file_bytes: int = option(
        6_000_000,
        "mappedFileSizeConsumeQueue",
        "The size of a consume queue file: 20 bytes for each message.",
    )
    access_message_in_memory_max_ratio: int = option(  # Apache's default is 40.
        -1,
        "accessMessageInMemoryMaxRatio",
        "How many of the newest messages count as being in memory, in % of the machine's. Pulls of older "
        "ones get less at a time, and with `slaveReadEnable` are sent to a slave. -1: 2 GiB of messages.",
    )
    max_hash_slot_num: int = option(
        5_000_000,
        "maxHashSlotNum",
        "The slots of an index file. Do not change it for a store that exists.",
    )
    max_index_num: int = option(
        20_000_000,
        "maxIndexNum",
        "The entries of an index file; each key of a message takes one. Do not change it for a store that "
        "exists.",
    )
    enable_retry_topic_v2: bool = option(
        False,
        "enableRetryTopicV2",
        "Name POP's retry topics `%RETRY%GROUP+TOPIC`, which cannot be another group's. Messages "
        "under the old name, `%RETRY%GROUP_TOPIC`, are delivered as well.",
    )
    enable_lmq: bool = option(
        False,
        "enableLmq",
        "Light queues (LMQ): a message whose property `INNER_MULTI_DISPATCH` names `%LMQ%` topics, separated "
        "by commas, can be read from each of them as well; they and `%LMQ%` groups need not be created. "
        "Together with `enableMultiDispatch`.",
    )
    enable_multi_dispatch: bool = option(
        False, "enableMultiDispatch", "Light queues, together with `enableLmq`."
    )
    max_lmq_consume_queue_num: int = option(
        20_000,
        "maxLmqConsumeQueueNum",
        "The most light queues; a message that names one more is refused.",
    )
    message_delay_level: str = option(
        DELAY_LEVELS, "messageDelayLevel", "The delay levels, the first is level 1."
    )
    file_reserved_hours: int = option(
        72,
        "fileReservedTime",
        "How long messages are kept, in hours. Older files of the commit log are deleted "
        "in the hours of `deleteWhen`, and at any time from `diskMaxUsedSpaceRatio` on.",
    )
    delete_when: str = option(
        "04", "deleteWhen", "The hours of the day in which old files are deleted, 00 to 23, separated by `;`."
    )
    disk_max_used_space_ratio: int = option(
        75,
        "diskMaxUsedSpaceRatio",
        "Above this use of the disk, in percent, files older than `fileReservedTime` are deleted at any "
        "hour; 100: never.",
    )
    disk_space_clean_forcibly_ratio: int = option(
        85,
        "diskSpaceCleanForciblyRatio",
        "Above this use of the disk, in percent, the oldest files are deleted **regardless of age**, as many "
        "as necessary; 100: never.",
    )
    clean_file_forcibly_enable: bool = option(
        True,
        "cleanFileForciblyEnable",
        "Allow forced cleaning. With `false` messages stay for `fileReservedTime`, and producers are "
        "refused when the disk is full.",
    )
    delete_file_batch_max: int = option(
        10, "deleteFileBatchMax", "The most files of the commit log that are deleted at once, every 10 s."
    )
    disk_space_warning_level_ratio: int = option(
        90,
        "diskSpaceWarningLevelRatio",
        "From this use of the disk on, in percent, producers are refused while consumers continue; 100: "
        "never.",
    )

    # Timer messages.

    timer_wheel_enable: bool = option(
        True,
        "timerWheelEnable",
        "Accept timer messages: `TIMER_DELIVER_MS`, `TIMER_DELAY_MS`, `TIMER_DELAY_SEC`.",
    )
    timer_precision_ms: int = option(
        1_000,
        "timerPrecisionMs",
        "Timer messages are delivered at multiples of this many ms: 100, 200, 500 or 1000. Do not change it "
        "for a store that exists.",
    )
    timer_max_delay_sec: int = option(
        259_200, "timerMaxDelaySec", "The longest time that a timer message can wait, in seconds: three days."
    )
    timer_roll_window_slot: int = option(
        172_800,
        "timerRollWindowSlot",
        "A timer message that waits for more slots than this is stored again meanwhile, so that old files "
        "can be deleted.",
    )
    timer_congest_num_each_slot: int = option(
        2_147_483_647,
        "timerCongestNumEachSlot",
        "The most messages that may wait for the same time; further ones are refused. Apache's broker begins "
        "to refuse some at this number, and refuses all at twice as many.",
    )
    timer_log_file_bytes: int = option(
        104_857_600,
        "mappedFileSizeTimerLog",
        "The size of a timer log file: 52 bytes for each timer message. Do not change it for a store that "
        "exists.",
    )
    recall_message_enable: bool = option(
        False, "recallMessageEnable", "Allow producers to recall timer messages that still wait."
    )

    def __post_init__(self) -> None:
        validate_name("brokerName", self.broker_name)
        validate_name("brokerClusterName", self.cluster_name)
        _check_role(self)
        self._check_store()
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
        _check_access(self)
        check_announced(self.broker_ip, "brokerIP1")
        if not self.store_path.strip():
            raise ConfigError("storePathRootDir is blank; name a directory for the broker's files alone")
        if any(ord(character) <= ord(" ") for character in self.region_id):
            raise ConfigError(
                f"regionId {self.region_id!r} has blanks or control characters; records hold it"
            )

    @property
    def has_light_queues(self) -> bool:
        """Return whether messages go to the light queues that they name."""
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def in_memory_bytes(self) -> int:
        """Return how many of the newest bytes of the commit log count as being in memory."""
        percent = self.access_message_in_memory_max_ratio
        if percent < 0:
            return IN_MEMORY_BYTES
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * percent // 100

    def _check_store(self) -> None:
        """Raise ConfigError for options of the store and its timers that cannot be honoured."""
        if self.timer_precision_ms not in TIMER_PRECISIONS_MS:
            raise ConfigError(f"timerPrecisionMs {self.timer_precision_ms}; 100, 200, 500 or 1000 is allowed")
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(f"flushDiskType {self.flush_disk_type!r}; ASYNC_FLUSH or SYNC_FLUSH is allowed")
        if "," in self.commit_log_path:
            raise ConfigError(f"storePathCommitLog={self.commit_log_path}: only one directory is supported")
        if self.enable_lmq != self.enable_multi_dispatch:
            raise ConfigError("enableLmq and enableMultiDispatch: light queues need both, set the other too")
        if self.max_lmq_consume_queue_num <= 0:
            raise ConfigError(f"maxLmqConsumeQueueNum {self.max_lmq_consume_queue_num} is not positive")
        if not self.delete_hours:
            raise ConfigError("deleteWhen is empty; write for example '04' or '03;15'")
        if not self.delay_levels_ms:
            raise ConfigError(f"messageDelayLevel is empty; write for example {DELAY_LEVELS!r}")

    @property
    def delete_hours(self) -> frozenset[int]:
        """Return the hours of the day in which old files are deleted."""
        hours = []
        for text in filter(None, self.delete_when.split(";")):
            hour = whole_number(text.strip())
            if hour is None or hour >= HOURS_A_DAY:
                raise ConfigError(f"deleteWhen {shown(text)!r}; hours 00 to 23 are allowed, separated by ;")
            hours.append(hour)
        return frozenset(hours)

    @property
    def delay_levels_ms(self) -> list[int]:
        """Return the delay of each level; the first is level 1."""
        levels = []
        for text in self.message_delay_level.split():
            count, seconds = whole_number(text[:-1]), _SECONDS.get(text[-1])
            if count is None or seconds is None:
                raise ConfigError(f"messageDelayLevel {shown(text)!r}; write for example '1s 5s 1m 2h'")
            levels.append(count * seconds * 1000)
        return levels

    @property
    def is_slave(self) -> bool:
        """Return whether the broker copies a master."""
        return self.broker_role == "SLAVE"

    @property
    def waits_for_slaves(self) -> bool:
        """Return whether sends are acknowledged only once slaves have them."""
        return self.broker_role == "SYNC_MASTER" and self.in_sync_replicas > 1

    def replicas_needed(self, in_sync: int) -> int:
        """Return how many brokers must have a message, with so many in sync (CommitLog.calcNeedAckNums)."""
        needed = self.in_sync_replicas if self.waits_for_slaves else 1
        if self.enable_auto_in_sync_replicas and self.enable_slave_acting_master:
            needed = max(min(needed, in_sync), self.min_in_sync_replicas)
        return needed

    @property
    def ha_networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """Return the networks that slaves may connect from; raises ConfigError for invalid ones."""
        texts = [text.strip() for text in self.ha_allowed_addresses.split(";") if text.strip()]
        try:
            return [ipaddress.ip_network(text, strict=False) for text in texts]
        except ValueError as error:
            raise ConfigError(
                f"haAllowedAddresses {self.ha_allowed_addresses!r}: {error}; "
                "write addresses or networks, for example 10.0.0.2;10.1.0.0/16"
            ) from None

    @property
    def address_server_url(self) -> str | None:
        """Return the page that lists the name servers; None if there is none. Raises ConfigError."""
        if not self.fetch_namesrv_addr:
            return None
        domain = self.address_server_domain.strip()
        if not domain:
            raise ConfigError(
                "fetchNamesrvAddrByAddressServer=true needs rmqAddressServerDomain, as in config.example:8080"
            )
        host = domain if ":" in domain else f"{domain}:8080"
        return f"http://{host}/rocketmq/{self.address_server_sub_group}"

    @property
    def asks_slaves(self) -> bool:
        """Return whether slaves may have acted for this master while it was gone."""
        return self.enable_slave_acting_master and not self.is_slave and bool(self.namesrv_addr)

    @property
    def client_ports(self) -> tuple[int, ...]:
        """Return the ports that serve clients."""
        port = self.listen_port
        return (port, port - VIP_DISTANCE) if port > VIP_DISTANCE else (port,)

    @property
    def address(self) -> str:
        """Return the address that the name server passes to clients."""
        return f"{self.broker_ip}:{self.listen_port}"

    @property
    def brokers_secrets(self) -> tuple[bytes, ...]:
        """Return the secrets that all brokers of the cluster know; this broker signs with the first one."""
        return self.credentials.secrets if self.credentials is not None else ()

    @property
    def connection_limits(self) -> ConnectionLimits:
        """Return the limits of clients' connections."""
        must_authenticate = self.authentication_enabled and not self.authorization_dry_run
        return ConnectionLimits(
            connections_max=self.max_connections,
            per_address_max=self.max_connections_per_address,
            unauthenticated_max=self.max_unauthenticated_connections if must_authenticate else None,
        )

    @property
    def is_audited(self) -> bool:
        """Return whether changes, sign-ins and refusals are recorded."""
        return self.audit_enabled and self.authentication_enabled

    @property
    def serves_metrics(self) -> bool:
        """Return whether metrics are served for Prometheus."""
        return self.metrics_exporter_type in METRICS_SERVED


def check_peers_are_known(config: BrokerConfig) -> None:
    """Raise ConfigError if others could pose as brokers of our cluster."""
    if config.namesrv_addr is None or config.credentials is not None or is_loopback(config.bind_address):
        return
    raise ConfigError(
        f"refusing to listen on {config.bind_address} among other brokers without "
        f'{CREDENTIALS_OPTION}={{"accessKey":"…","secretKey":"…"}}, the same at all brokers of the cluster: '
        "anyone who reaches it could pretend to be one of them"
    )


def _check_access(config: BrokerConfig) -> None:
    """Raise ConfigError for access control that would not hold, or would lock brokers out."""
    if config.authorization_dry_run and not config.authorization_enabled:
        raise ConfigError(
            "authorizationDryRun=true needs authenticationEnabled=true and authorizationEnabled=true, "
            "which it tries out"
        )
    if not config.authentication_enabled:
        if config.authorization_enabled:  # Apache's broker believes any name in a request (#11178).
            raise ConfigError(
                "authorizationEnabled=true without authenticationEnabled=true: anyone could use any user's "
                "name; set both"
            )
        return
    if (config.is_slave or config.ha_listen_port) and config.credentials is None:
        option = "brokerRole=SLAVE" if config.is_slave else f"haListenPort={config.ha_listen_port}"
        raise ConfigError(
            f"{option} with authenticationEnabled=true: a slave signs its requests to its master, and proves "
            "itself before it copies the log; set "
            f'{CREDENTIALS_OPTION}={{"accessKey":"…","secretKey":"…"}}, the same at both'
        )


def _check_role(config: BrokerConfig) -> None:
    """Raise ConfigError for a role that contradicts other options."""
    if config.broker_role not in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"):
        raise ConfigError(f"brokerRole {config.broker_role!r}; ASYNC_MASTER, SYNC_MASTER or SLAVE is allowed")
    if config.is_slave != (config.broker_id > 0):
        raise ConfigError(
            f"brokerId {config.broker_id} with brokerRole={config.broker_role}: a master has 0, and a slave "
            "(brokerRole=SLAVE) 1 or more"
        )
    if config.is_slave and config.kafka_listen_port:
        raise ConfigError("kafkaListenPort: a slave takes no messages; set it at its master only")
    if config.is_slave and not config.namesrv_addr:
        raise ConfigError("brokerRole=SLAVE: a slave finds its master through name servers: set namesrvAddr")
    if config.ha_master_address is not None:
        if not config.is_slave:
            raise ConfigError("haMasterAddress is an option of slaves: set brokerRole=SLAVE, or remove it")
        split_address(config.ha_master_address)
    if config.in_sync_replicas > 1 and not config.waits_for_slaves:
        raise ConfigError(
            f"inSyncReplicas={config.in_sync_replicas}: an ASYNC_MASTER waits for no slave; set "
            "brokerRole=SYNC_MASTER, or remove it"
        )
    if config.min_in_sync_replicas > config.in_sync_replicas:
        raise ConfigError(
            f"minInSyncReplicas={config.min_in_sync_replicas} is above "
            f"inSyncReplicas={config.in_sync_replicas}"
        )
    if 1 < config.total_replicas < config.in_sync_replicas:
        raise ConfigError(
            f"inSyncReplicas={config.in_sync_replicas} is above totalReplicas={config.total_replicas}"
        )
    if config.waits_for_slaves and not config.ha_listen_port:
        raise ConfigError(
            f"brokerRole=SYNC_MASTER with inSyncReplicas={config.in_sync_replicas} waits for slaves, and "
            f"none can connect: set haListenPort, for example {config.listen_port + 1}"
        )
    if config.is_slave and config.enable_remote_escape and not config.enable_slave_acting_master:
        raise ConfigError(
            "enableRemoteEscape: only an acting slave sends messages on: set enableSlaveActingMaster, too"
        )
    if config.ha_listen_port and config.ha_listen_port in config.client_ports:
        raise ConfigError(f"haListenPort {config.ha_listen_port} is used for clients; choose another")
