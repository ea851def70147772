"""The settings of a consumer: defaults and bounds of sessions, pulls, threads, timeouts, drains and retries;
RocketMQ's where it has them.

Upstream: client/consumer/DefaultMQPushConsumer.java.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from libramq.balance import TopicRule, averagely
from libramq.client.options import ConsumeFrom, Within, check_numbers
from libramq.errors import ConfigError
from libramq.message.names import validate_group

#: Ours: Apache's brokers return at most 32 a pull (pullBatchSize), LibraMQ's more. With 256 a message costs
#: the consumer 10 to 25 % more. A pull never requests more than may wait.
PULL_BATCH_SIZE: Final = 1000
#: Ours; upstream: 256 KiB. LibraMQ's brokers return more than 32 messages only to pulls that allow more bytes
#: than that (StoreConfig.bulk_transfer_bytes). Apache's return at most 32 messages and 256 KiB.
PULL_BATCH_BYTES: Final = 1024 * 1024
#: Integer.MAX_VALUE.
RECONSUME_TIMES_MAX: Final = (1 << 31) - 1
#: Java waits 500 ms before it pulls a new queue (RebalanceImpl.dispatchPullRequest). LibraMQ waits only if
#: another member may have owned it, long enough for that member to finish a handler and commit.
TAKEOVER_DELAY_MS: Final = 100
#: Ours: how long running handlers of a revoked queue may take; shorter than the takeover delay.
REVOKE_DRAIN_MS: Final = 75
#: RebalancePushImpl.UNLOCK_DELAY_TIME_MILLS: how long a running orderly batch keeps the queue's lock.
ORDERLY_DRAIN_MS: Final = 20_000
#: Ours: Java's client unlocks a queue before its one-way commit, which was seen up to 3 ms after the client
#: unregistered.
ORDERLY_TAKEOVER_MS: Final = 50
#: ConsumeOrderlyContext.suspendCurrentQueueTimeMillis: DefaultMQPushConsumer's default.
SUSPEND_MS: Final = 1_000
#: Ours: how long a listener may take for revoked queues; in coordinated groups, for handlers and listener
#: together.
REVOKE_TIMEOUT_MS: Final = 10_000
#: Ours, with its bounds: how long a member of a coordinated group may be silent (Kafka: 45 s).
SESSION_MS: Final = 10_000
#: Ours, with its bounds: how long a handler may run in a coordinated group (Kafka: max.poll.interval.ms).
MAX_PROCESSING_MS: Final = 300_000
#: DefaultMQPushConsumer.consumeThreadMin.
THREADS: Final = 20
#: DefaultMQPushConsumerImpl.checkConfig: the bound of consumeThreadMin.
THREADS_MAX: Final = 1000
#: DefaultMQPushConsumer.consumeTimeout: 15 minutes.
CONSUME_TIMEOUT_MS: Final = 15 * 60 * 1000
#: DefaultMQPushConsumer.popInvisibleTime.
INVISIBLE_MS: Final = 60_000
#: Ours; Java's lower bound is 5 s.
INVISIBLE_MS_MIN: Final = 1_000
#: DefaultMQPushConsumerImpl.checkConfig: the upper bound of popInvisibleTime.
INVISIBLE_MS_MAX: Final = 300_000
#: Ours: how long commits and unregistering may take after the drain time.
LEAVE_TIMEOUT_MS: Final = 1_000
#: RemoteBrokerOffsetStore: how long requests about offsets may take.
OFFSET_TIMEOUT_MS: Final = 5_000
#: The coordinator's strategy unless one is chosen by name.
GROUP_STRATEGY: Final = "balanced_sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Names and bounds follow DefaultMQPushConsumer(Impl.checkConfig); the bounds of periods are ours.

    -1 means no limit for the two thresholds of a topic.

    consume_timeout_ms: how long a handler may run before its messages are redelivered.
    persist_ms: how often changed offsets are committed (upstream: 5 s); messages handled after the last
    commit are redelivered if the member is killed.
    catch_up_rate: messages a second from each queue taken over, until its end is reached; 0: unlimited.
    In coordinated groups only:
    session_ms: after this time without a request from the member, the coordinator gives its queues to others;
    after this time without a response, the member starts no handler. It sends a request every third of it.
    revoke_timeout_ms: how long running handlers and the listener may take, together, for a revoked queue;
    then the coordinator gives it to another member. It waits at least 1 s.
    max_processing_ms: while a handler runs longer than this, others get the member's queues.
    has_assigned_hook: messages of a queue wait until the program's hook for it has returned.
    fetches: the program fetches messages itself (`Consumer`); they are not passed to handlers.
    auto_commit: offsets are committed automatically. assigns: the program chooses its queues, and is not a
    member of the group.
    pop: the member pops messages and owns no queues. invisible_ms: how long popped messages are invisible to
    others; extended while a handler runs.
    dead_letter_errors: a dead letter carries the exception of its handler, as properties.
    instance_id: the name of a static member, which keeps its queues when it restarts within its session.
    group_strategy: the name of the coordinator's strategy.
    """

    group: str
    client_id: str
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: int = 0
    strategy: TopicRule = averagely
    threads: Annotated[int, Within(1, THREADS_MAX)] = THREADS
    consume_timeout_ms: Annotated[int, Within(100, 86_400_000)] = CONSUME_TIMEOUT_MS
    batch_size: Annotated[int, Within(1, 1024)] = 1
    pull_batch_size: Annotated[int, Within(1, 1024)] = PULL_BATCH_SIZE
    pull_batch_bytes: Annotated[int, Within(1, 4 * 1024 * 1024)] = PULL_BATCH_BYTES
    pull_interval_ms: Annotated[int, Within(0, 65_535)] = 0
    pull_threshold_for_queue: Annotated[int, Within(1, 65_535)] = 1000
    pull_threshold_mib_for_queue: Annotated[int, Within(1, 1024)] = 100
    pull_threshold_for_topic: Annotated[int, Within(-1, 6_553_500)] = -1
    pull_threshold_mib_for_topic: Annotated[int, Within(-1, 102_400)] = -1
    pull_threshold_for_all: Annotated[int, Within(-1, 6_553_500)] = -1
    span_max: Annotated[int, Within(1, 65_535)] = 2000
    max_reconsume_times: Annotated[int, Within(-1, RECONSUME_TIMES_MAX)] = -1
    route_refresh_ms: Annotated[int, Within(100, 3_600_000)] = 30_000
    heartbeat_ms: Annotated[int, Within(100, 60_000)] = 30_000
    persist_ms: Annotated[int, Within(10, 600_000)] = 1_000
    rebalance_ms: Annotated[int, Within(100, 600_000)] = 20_000
    takeover_delay_ms: Annotated[int, Within(0, 60_000)] = TAKEOVER_DELAY_MS
    revoke_drain_ms: Annotated[int, Within(0, 60_000)] = REVOKE_DRAIN_MS
    orderly: bool = False
    broadcasting: bool = False
    # Locks of queues being released are not renewed.
    orderly_drain_ms: Annotated[int, Within(0, 30_000)] = ORDERLY_DRAIN_MS
    orderly_takeover_ms: Annotated[int, Within(0, 60_000)] = ORDERLY_TAKEOVER_MS
    suspend_ms: Annotated[int, Within(10, 30_000)] = SUSPEND_MS
    pop: bool = False
    invisible_ms: Annotated[int, Within(INVISIBLE_MS_MIN, INVISIBLE_MS_MAX)] = INVISIBLE_MS
    dead_letter_errors: bool = True
    fetches: bool = False
    has_assigned_hook: bool = False
    auto_commit: bool = True
    assigns: bool = False
    has_revoke_hook: bool = False
    revoke_timeout_ms: Annotated[int, Within(0, 600_000)] = REVOKE_TIMEOUT_MS
    catch_up_rate: Annotated[int, Within(0, 10_000_000)] = 0
    session_ms: Annotated[int, Within(1_000, 1_800_000)] = SESSION_MS
    max_processing_ms: Annotated[int, Within(100, 86_400_000)] = MAX_PROCESSING_MS
    instance_id: str | None = None
    group_strategy: str = GROUP_STRATEGY

    def __post_init__(self) -> None:
        validate_group(self.group)
        check_numbers(self)
        for name in ("orderly", "broadcasting", "auto_commit", "pop", "dead_letter_errors"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is True or False, not {getattr(self, name)!r}")
        if self.pop:
            self._check_pop()
        if self.instance_id is not None and not isinstance(self.instance_id, str):
            raise ConfigError(f"instance_id is a text, not {self.instance_id!r}")
        if self.instance_id is not None and not _INSTANCE_ID.fullmatch(self.instance_id):
            raise ConfigError(f"instance_id is 1 to 64 of A-Z a-z 0-9 _ . # -, not {self.instance_id!r}")

    def _check_pop(self) -> None:
        """Raise ConfigError for settings that need owned queues."""
        for name in ("orderly", "broadcasting"):
            if getattr(self, name):
                raise ConfigError(f"a consumer with pop=True cannot be {name}: it owns no queues")
        if self.instance_id is not None:
            raise ConfigError("a consumer with pop=True has no instance_id: it owns no queues to keep")
        if self.consume_from is ConsumeFrom.TIMESTAMP:
            raise ConfigError('consume_from is "earliest" or "latest" with pop=True')

    @property
    def retries_max(self) -> int:
        """Return after how many redeliveries a message becomes a dead letter; orderly default: never."""
        if self.max_reconsume_times != -1:
            return self.max_reconsume_times
        return RECONSUME_TIMES_MAX if self.orderly else 16

    def is_last_attempt(self, reconsume_times: int) -> bool:
        """Return whether a message with this many redeliveries becomes a dead letter if it fails again."""
        return not self.broadcasting and reconsume_times >= self.retries_max

    @property
    def is_member(self) -> bool:
        """Return whether this consumer is one of the members that share the group's queues."""
        return not self.broadcasting and not self.assigns and not self.pop

    @property
    def has_retry_topic(self) -> bool:
        """Return whether failed messages are redelivered, through the group's retry topic."""
        return not self.broadcasting and not self.fetches and not self.pop

    @property
    def drain_ms(self) -> int:
        """Return how long to wait for running handlers of a revoked queue."""
        return self.orderly_drain_ms if self.orderly else self.revoke_drain_ms


_INSTANCE_ID: Final = re.compile(r"[A-Za-z0-9_.#-]{1,64}")
