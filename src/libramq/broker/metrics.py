"""The metrics of a broker for Prometheus: their names and labels, which groups get time series of their own,
and how they are sampled.

Metrics that Apache's broker has keep Apache's names (BrokerMetricsConstant.java); others begin with libra_.
Prometheus itself adds the broker's address.
"""

from collections import Counter as Sums
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isnan, nan
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from libramq.broker.request_latency import BOUNDS_MS, Answered, RequestLatency, Times
from libramq.groups.rebalance_event import Reason, RebalanceEvent

#: Ours: how many groups have their own time series, some 40 each; all others share OTHERS.
GROUPS_MAX: Final = 500
#: No group can have this name.
OTHERS: Final = "(others)"
#: Ours: from imperceptible to the pauses of Apache's broker on a bad day.
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 60.0)
_FLUSH_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
#: Ours: lags of a group in a topic that have their own time series; further topics share OTHERS.
LAGS_MAX: Final = 2_000
_GROUP: Final = "consumer_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A snapshot of a broker. refused: connections, by limit; diagnoses: the kinds found, by group.

    log_bytes: of the commit log; unflushed_bytes: of it that are not known to be on the disk. kept_ms: for
    how long it has kept its oldest message. disk_used: the used share of its disk; None: unknown.
    refuses: whether no message is stored.
    """

    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    held_pulls: int
    connections: int
    refused: Mapping[str, int]
    longest_turn_us: int
    longest_wait_us: int = 0
    diagnoses: Mapping[str, Collection[str]]
    log_bytes: int = 0
    unflushed_bytes: int = 0
    kept_ms: int = 0
    disk_used: float | None = None
    refuses: bool = False


class TopicLag(NamedTuple):
    """The lag of a group in a topic. messages: None: unknown; age_ms: of the oldest, None: unknown."""

    group: str
    topic: str
    messages: int | None
    age_ms: int | None


class Family(NamedTuple):
    """Time series of one name, whose values are replaced together."""

    name: str
    labels: Sequence[str]
    about: str
    kind: Any = GaugeMetricFamily


LAG: Final = Family(
    "rocketmq_consumer_lag_messages", (_GROUP, "topic"), "Messages that wait for a group; NaN: unknown."
)
LAG_LATENCY: Final = Family(
    "rocketmq_consumer_lag_latency",
    (_GROUP, "topic"),
    "For how many milliseconds the oldest of them has waited; NaN: unknown.",
)
DEAD_LETTERS: Final = Family(
    "rocketmq_send_to_dlq_messages_total",
    (_GROUP,),
    "Messages that became dead letters.",
    CounterMetricFamily,
)
RETRIES: Final = Family(
    "libra_group_retry_messages",
    (_GROUP,),
    "Messages that have failed and wait for another attempt; NaN: unknown.",
)
REFUSED_SENDS: Final = Family(
    "libra_sends_refused_total",
    ("response_code",),
    "Sends of RocketMQ's clients that were refused.",
    CounterMetricFamily,
)
RPC_LATENCY: Final = Family(
    "rocketmq_rpc_latency",
    ("request_code", "response_code", "is_long_polling"),
    "Milliseconds from a request to its answer.",
    HistogramMetricFamily,
)
FAMILIES: Final = (LAG, LAG_LATENCY, RETRIES, DEAD_LETTERS, REFUSED_SENDS, RPC_LATENCY)


class Snapshots(Collector):
    """Families whose values are replaced as a whole. Whoever reads them, on another thread, makes them."""

    def __init__(self) -> None:
        self._current: dict[Family, Collection[tuple[Sequence[str], float]]] = {}
        #: Of the answers; None: nobody counts them.
        self.latency: RequestLatency | None = None

    def describe(self) -> Iterable[Any]:
        """Return the families, without values."""
        return [_made(family) for family in FAMILIES]

    def collect(self) -> Iterable[Any]:
        """Return the families with their latest values."""
        for family, values in self._current.copy().items():
            yield _made(family, values)
        if self.latency is not None:
            refused = self.latency.refused_sends()
            yield _made(REFUSED_SENDS, (((name,), count) for name, count in refused.items()))
            yield _distributions(RPC_LATENCY, self.latency.times())

    def replace(self, family: Family, values: Collection[tuple[Sequence[str], float]]) -> None:
        """Replace a family's values, each with its labels; they do not change any more."""
        self._current[family] = values


def _made(family: Family, values: Iterable[tuple[Sequence[str], float]] = ()) -> Any:
    made = family.kind(family.name, family.about, labels=family.labels)
    for labels, value in values:
        made.add_metric(labels, value)
    return made


def _distributions(family: Family, times: Mapping[Answered, Times]) -> Any:
    made = HistogramMetricFamily(family.name, family.about, labels=family.labels)
    bounds = [*(str(float(bound)) for bound in BOUNDS_MS), "+Inf"]
    for answered, each in times.items():
        labels = (answered.request, answered.response, str(answered.is_held).lower())
        made.add_metric(labels, list(zip(bounds, accumulate(each.counts), strict=True)), each.sum_ms)
    return made


class Metrics:
    """All time series, served by `registry`. Writing and serving may be on different threads."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._groups: dict[str, None] = {}
        self._totals = {
            "messages_in": Counter("rocketmq_messages_in_total", "Messages stored.", registry=registry),
            "messages_out": Counter("rocketmq_messages_out_total", "Messages read.", registry=registry),
            "bytes_in": Counter("rocketmq_throughput_in_total", "Bytes stored.", registry=registry),
            "bytes_out": Counter("rocketmq_throughput_out_total", "Bytes read.", registry=registry),
        }
        self._sampled = dict.fromkeys(self._totals, 0)
        self._held_pulls = Gauge("libra_held_pulls", "Pulls that wait for messages.", registry=registry)
        self._add_connections()
        self._longest_turn = Gauge(
            "libra_longest_turn_seconds",
            "The longest that one event kept the loop from all others, since the last sample.",
            registry=registry,
        )
        self._add_groups()
        self._add_storage()
        self._ownerless: set[str] = set()
        self._snapshots = Snapshots()
        registry.register(self._snapshots)

    def _add_groups(self) -> None:
        registry = self.registry
        self._diagnoses = Gauge(
            "libra_group_diagnosis",
            "1 while this is wrong with the group.",
            [_GROUP, "kind"],
            registry=registry,
        )
        self._diagnosed: set[tuple[str, str]] = set()
        self._rebalances = Counter(
            "libra_group_rebalances_total",
            "Changes of a group, by reason.",
            [_GROUP, "reason"],
            registry=registry,
        )
        self._pause = self._histogram(
            "libra_group_queue_pause_seconds", "How long a queue that moved stood still."
        )
        self._restart_pause = self._histogram(
            "libra_static_member_restart_pause_seconds",
            "How long queues of a static member stood still while it restarted.",
        )
        self._double = self._histogram(
            "libra_group_queue_double_owner_seconds", "How long two members read a queue that moved."
        )
        self._stable = self._histogram(
            "libra_group_time_to_stable_seconds", "From a change to its last move."
        )
        self._moved = self._counter("libra_group_queues_moved_total", "Queues that changed hands.")
        self._minimum = self._counter(
            "libra_group_queues_moved_minimum_total", "Queues that had to change hands."
        )
        self._redelivered = self._counter(
            "libra_group_messages_redelivered_bound_total", "Upper bound of redelivered messages."
        )
        self._redelivered_unknown = self._counter(
            "libra_group_rebalances_redelivered_unknown_total", "Rebalances without a known such bound."
        )
        self._duplicates = self._counter(
            "libra_group_messages_duplicate_total", "Redelivered messages, as clients reported them."
        )
        self._catch_up = self._gauge(
            "libra_group_catch_up_peak_messages_per_second",
            "The busiest second of the last rebalance's new owners.",
        )
        self._members = self._gauge("libra_group_members", "Members.")
        self._unowned = self._gauge(
            "libra_group_queues_unowned",
            "Queues that no member read when all was settled; all of a group without members.",
        )

    def _add_storage(self) -> None:
        registry = self.registry
        self._longest_wait = Gauge(
            "libra_longest_wait_seconds",
            "The longest that a connection waited for its turn, since the last sample.",
            registry=registry,
        )
        self._flushes = Histogram(
            "libra_flush_seconds",
            "How long a flush of the commit log took, with the wait for its thread.",
            registry=registry,
            buckets=_FLUSH_SECONDS,
        )
        self._storage = {
            "log_bytes": Gauge("rocketmq_storage_size", "Bytes of the commit log.", registry=registry),
            "unflushed_bytes": Gauge(
                "rocketmq_storage_flush_behind_bytes",
                "Bytes of it that are not known to be on the disk.",
                registry=registry,
            ),
            "kept_ms": Gauge(
                "rocketmq_storage_message_reserve_time",
                "For how many milliseconds the oldest message has been kept.",
                registry=registry,
            ),
            "disk_used": Gauge(
                "libra_disk_used_ratio", "The used share of the disk; NaN: unknown.", registry=registry
            ),
            "refuses": Gauge(
                "libra_store_refuses",
                "1 while no message is stored: the disk is full, or writing failed.",
                registry=registry,
            ),
        }

    def _add_connections(self) -> None:
        self._connections = Gauge("libra_connections", "Open connections.", registry=self.registry)
        self._refused = Counter(
            "libra_connections_refused_total",
            "Clients' connections that were refused, or ended, for a limit.",
            ["limit"],
            registry=self.registry,
        )
        self._refused_before: dict[str, int] = {}

    def record(self, event: RebalanceEvent) -> None:
        """Count a rebalance event."""
        group = self._label(event.group)
        if event.member_count is not None:
            self._members.labels(group).set(event.member_count)
        if event.kind == "started":
            # With 0: Prometheus sees no increase where a series begins.
            self._pause.labels(group)
            self._rebalances.labels(group, Reason.PROCESSING_TIMEOUT.value)
            self._rebalances.labels(group, event.reason or "").inc()
        elif event.kind == "restarted":
            self._restart_pause.labels(group).observe((event.worst_pause_ms or 0) / 1000)
        elif event.kind == "moved":
            for move in event.moves or ():
                self._pause.labels(group).observe(move.pause_ms / 1000)
                self._double.labels(group).observe(move.double_owner_ms / 1000)
        elif event.kind == "settled":
            self._stable.labels(group).observe((event.time_to_stable_ms or 0) / 1000)
            self._moved.labels(group).inc(event.moved or 0)
            self._minimum.labels(group).inc(event.minimum or 0)
            self._redelivered.labels(group).inc(event.redelivered_upper_bound or 0)
            self._redelivered_unknown.labels(group).inc(event.redelivered_upper_bound is None)
            self._duplicates.labels(group).inc(event.duplicates_reported or 0)
            self._catch_up.labels(group).set(event.peak_catch_up_rate or 0)
            self._unowned.labels(group).set(event.unowned or 0)

    def sample(self, sample: Sample) -> None:
        """Set the current values; totals only grow."""
        for name, counter in self._totals.items():
            total: int = getattr(sample, name)
            counter.inc(max(0, total - self._sampled[name]))
            self._sampled[name] = total
        self._held_pulls.set(sample.held_pulls)
        self._connections.set(sample.connections)
        for limit, total in sample.refused.items():
            self._refused.labels(limit).inc(max(0, total - self._refused_before.get(limit, 0)))
            self._refused_before[limit] = total
        self._longest_turn.set(sample.longest_turn_us / 1e6)
        self._longest_wait.set(sample.longest_wait_us / 1e6)
        for name, gauge in self._storage.items():
            value: float | None = getattr(sample, name)
            gauge.set(nan if value is None else value)
        found = {(self._label(group), kind) for group, kinds in sample.diagnoses.items() for kind in kinds}
        for group, kind in found:
            self._diagnoses.labels(group, kind).set(1)
        for group, kind in self._diagnosed - found:
            self._diagnoses.labels(group, kind).set(0)
        self._diagnosed |= found

    def flushed(self, took_ms: int) -> None:
        """Count a flush."""
        self._flushes.observe(took_ms / 1000)

    def observe(self, latency: RequestLatency) -> None:
        """Show what is known of answers from now on."""
        self._snapshots.latency = latency

    def progress(self, lags: Iterable[TopicLag], unowned: Mapping[str, int]) -> None:
        """Set the lag of all groups. unowned: the queues of each group without members."""
        messages: dict[tuple[str, str], float] = {}
        ages: dict[tuple[str, str], float] = {}
        for lag in lags:
            place = self._place(lag.group, lag.topic, messages)
            messages[place] = _together(messages.get(place, 0), nan if lag.messages is None else lag.messages)
            age_ms = nan if lag.age_ms is None else lag.age_ms
            ages[place] = max(age_ms, ages.get(place, age_ms), key=_by_age)
        self._snapshots.replace(LAG, messages.items())
        self._snapshots.replace(LAG_LATENCY, ages.items())
        ownerless: Sums[str] = Sums()
        for group, queues in unowned.items():
            ownerless[self._label(group)] += queues
        for group, queues in ownerless.items():
            self._members.labels(group).set(0)
            self._unowned.labels(group).set(queues)
        present = {group for group, _ in messages}
        for group in self._ownerless - present:  # It was deleted.
            self._unowned.labels(group).set(0)
        self._ownerless = set(ownerless)

    def retries(self, counts: Iterable[tuple[str, int | None]]) -> None:
        """Set how many messages of each group wait for another attempt; None: unknown."""
        waiting: dict[tuple[str], float] = {}
        for group, count in counts:
            if count or group in self._groups:
                label = (self._label(group),)
                waiting[label] = _together(waiting.get(label, 0), nan if count is None else count)
        self._snapshots.replace(RETRIES, waiting.items())

    def dead_letters(self, counts: Iterable[tuple[str, int]]) -> None:
        """Set how many dead letters each group ever had here.

        A group with other time series has 0, since Prometheus sees no increase where a series begins. Idle
        groups have no series: they would use up `GROUPS_MAX`.
        """
        dead: Sums[tuple[str]] = Sums()
        for group, count in counts:
            if count or group in self._groups:
                dead[(self._label(group),)] += count
        self._snapshots.replace(DEAD_LETTERS, dead.items())

    def _place(self, group: str, topic: str, known: Mapping[tuple[str, str], float]) -> tuple[str, str]:
        place = self._label(group), topic
        if place[0] == OTHERS or (place not in known and len(known) >= LAGS_MAX):
            return place[0], OTHERS
        return place

    def _label(self, group: str) -> str:
        if group not in self._groups:
            if len(self._groups) >= GROUPS_MAX:
                return OTHERS
            self._groups[group] = None
        return group

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, [_GROUP], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, [_GROUP], registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, [_GROUP], registry=self.registry, buckets=_SECONDS)


def _by_age(age_ms: float) -> float:
    """Return by what the greatest age is found: unknown ones are greater than 0 alone."""
    return 0.5 if isnan(age_ms) else age_ms


def _together(one: float, other: float) -> float:
    """Return the sum of two lags; of what is known, but unknown rather than 0."""
    known = sum(each for each in (one, other) if not isnan(each))
    return nan if known == 0 and (isnan(one) or isnan(other)) else known
