"""The metrics of a broker for Prometheus: their names and labels, which groups have their own time series,
and how they are sampled.

Metrics that Apache's broker has keep Apache's names (BrokerMetricsConstant.java); others begin with libra_.
Prometheus itself adds the broker's address.
"""

from collections import Counter as Sums
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import isnan, nan
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from libramq.broker.request_latency import BOUNDS_MS, Answered, RequestLatency, Times
from libramq.groups.rebalance_event import QueueMove, Reason, RebalanceEvent

#: Ours: groups with their own time series, some 40 each; all others share OTHERS.
GROUPS_MAX: Final = 500
#: No group can have this name.
OTHERS: Final = "(others)"
#: Ours: from imperceptible to the pauses of Apache's broker on a bad day.
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 60.0)
_FLUSH_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
#: Ours: lags of a group in a topic with their own time series; further topics share OTHERS.
LAGS_MAX: Final = 2_000
_GROUP: Final = "consumer_group"

#: Metrics of a sample, by its keys.
TOTALS: Final = {
    "messages_in": ("rocketmq_messages_in_total", "Messages stored."),
    "messages_out": ("rocketmq_messages_out_total", "Messages read."),
    "bytes_in": ("rocketmq_throughput_in_total", "Bytes stored."),
    "bytes_out": ("rocketmq_throughput_out_total", "Bytes read."),
}
VALUES: Final = {
    "held_pulls": ("libra_held_pulls", "Pulls that wait for messages."),
    "connections": ("libra_connections", "Open connections."),
    "longest_turn_s": (
        "libra_longest_turn_seconds",
        "The longest that one event kept the loop from all others, since the last sample.",
    ),
    "longest_wait_s": (
        "libra_longest_wait_seconds",
        "The longest that a connection waited for its turn, since the last sample.",
    ),
    "log_bytes": ("rocketmq_storage_size", "Bytes of the commit log."),
    "unflushed_bytes": (
        "rocketmq_storage_flush_behind_bytes",
        "Bytes of the commit log not known to be on the disk.",
    ),
    "kept_ms": (
        "rocketmq_storage_message_reserve_time",
        "For how many milliseconds the oldest message has been kept.",
    ),
    "disk_used": ("libra_disk_used_ratio", "The used share of the disk; NaN: unknown."),
    "refuses": ("libra_store_refuses", "1 while no message is stored: the disk is full, or writing failed."),
}
_REFUSED: Final = (
    "libra_connections_refused_total",
    "Client connections refused or closed because of a limit.",
    ("limit",),
)
_FLUSHES: Final = (
    "libra_flush_seconds",
    "How long a flush of the commit log took, with the wait for its thread.",
)
#: Metrics of a `RebalanceEvent` and its `QueueMove`s, by their fields.
_COUNTS: Final = {
    "moved": ("libra_group_queues_moved_total", "Queues that changed hands."),
    "minimum": ("libra_group_queues_moved_minimum_total", "Queues that had to change hands."),
    "redelivered_upper_bound": (
        "libra_group_messages_redelivered_bound_total",
        "Upper bound of redelivered messages.",
    ),
    "duplicates_reported": (
        "libra_group_messages_duplicate_total",
        "Redelivered messages, as clients reported them.",
    ),
}
_STATES: Final = {
    "member_count": ("libra_group_members", "Members."),
    "peak_catch_up_rate": (
        "libra_group_catch_up_peak_messages_per_second",
        "The busiest second of the last rebalance's new owners.",
    ),
    "unowned": (
        "libra_group_queues_unowned",
        "Queues that no member read when all was settled; all of a group without members.",
    ),
}
_TIMES: Final = {
    "pause_ms": ("libra_group_queue_pause_seconds", "How long a queue that moved stood still."),
    "worst_pause_ms": (
        "libra_static_member_restart_pause_seconds",
        "How long queues of a static member stood still while it restarted.",
    ),
    "double_owner_ms": (
        "libra_group_queue_double_owner_seconds",
        "How long two members read a queue that moved.",
    ),
    "time_to_stable_ms": (
        "libra_group_time_to_stable_seconds",
        "From a change to its last move.",
    ),
}
_UNKNOWN: Final = (
    "libra_group_rebalances_redelivered_unknown_total",
    "Rebalances without a known upper bound.",
    (_GROUP,),
)
_REBALANCES: Final = ("libra_group_rebalances_total", "Changes of a group, by reason.", (_GROUP, "reason"))
_DIAGNOSES: Final = ("libra_group_diagnosis", "1 while the group has this problem.", (_GROUP, "kind"))


class TopicLag(NamedTuple):
    """The lag of a group in a topic. messages: None: unknown; age_ms: of the oldest one; None: unknown."""

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
    """Families whose values are replaced as a whole. The reading thread builds them."""

    def __init__(self) -> None:
        self._current: dict[Family, Collection[tuple[Sequence[str], float]]] = {}
        #: Of the answers; None: not counted.
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
        """Replace a family's values, each with its labels; they must not change afterwards."""
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
        self._totals = self._registered(Counter, TOTALS)
        self._sampled = dict.fromkeys(self._totals, 0.0)
        self._values = self._registered(Gauge, VALUES)
        self._counts = self._registered(Counter, _COUNTS, _GROUP)
        self._states = self._registered(Gauge, _STATES, _GROUP)
        self._times = self._registered(partial(Histogram, buckets=_SECONDS), _TIMES, _GROUP)
        self._flushes = Histogram(*_FLUSHES, registry=registry, buckets=_FLUSH_SECONDS)
        self._unknown = Counter(*_UNKNOWN, registry=registry)
        self._rebalances = Counter(*_REBALANCES, registry=registry)
        self._diagnoses = Gauge(*_DIAGNOSES, registry=registry)
        self._diagnosed: set[tuple[str, str]] = set()
        self._refused = Counter(*_REFUSED, registry=registry)
        self._refused_before: dict[str, int] = {}
        self._ownerless: set[str] = set()
        self._snapshots = Snapshots()
        registry.register(self._snapshots)

    def _registered(self, kind: Any, series: Mapping[str, tuple[str, str]], *labels: str) -> dict[str, Any]:
        return {key: kind(*each, labels, registry=self.registry) for key, each in series.items()}

    def record(self, event: RebalanceEvent) -> None:
        """Count a rebalance event."""
        group = self._label(event.group)
        if event.member_count is not None:
            self._states["member_count"].labels(group).set(event.member_count)
        if event.kind == "started":
            # Start at 0: Prometheus sees no increase when a series begins.
            self._times["pause_ms"].labels(group)
            self._rebalances.labels(group, Reason.PROCESSING_TIMEOUT.value)
            self._rebalances.labels(group, event.reason or "").inc()
        elif event.kind == "restarted":
            self._observe(group, event, "worst_pause_ms")
        elif event.kind == "moved":
            for move in event.moves or ():
                self._observe(group, move, "pause_ms", "double_owner_ms")
        elif event.kind == "settled":
            self._observe(group, event, "time_to_stable_ms")
            for name, counter in self._counts.items():
                counter.labels(group).inc(getattr(event, name) or 0)
            self._unknown.labels(group).inc(event.redelivered_upper_bound is None)
            for name in ("peak_catch_up_rate", "unowned"):
                self._states[name].labels(group).set(getattr(event, name) or 0)

    def _observe(self, group: str, event: RebalanceEvent | QueueMove, *names: str) -> None:
        for name in names:
            self._times[name].labels(group).observe((getattr(event, name) or 0) / 1000)

    def sample(
        self,
        values: Mapping[str, float | None],
        *,
        refused: Mapping[str, int],
        diagnoses: Mapping[str, Collection[str]],
    ) -> None:
        """Set the current values; totals only grow.

        values: by the names in TOTALS and VALUES; None: unknown. refused: connections, by limit; diagnoses:
        the kinds found, by group.
        """
        for name, counter in self._totals.items():
            total = values[name] or 0
            counter.inc(max(0, total - self._sampled[name]))
            self._sampled[name] = total
        for name, gauge in self._values.items():
            value = values[name]
            gauge.set(nan if value is None else value)
        for limit, count in refused.items():
            self._refused.labels(limit).inc(max(0, count - self._refused_before.get(limit, 0)))
            self._refused_before[limit] = count
        found = {(self._label(group), kind) for group, kinds in diagnoses.items() for kind in kinds}
        for group, kind in found:
            self._diagnoses.labels(group, kind).set(1)
        for group, kind in self._diagnosed - found:
            self._diagnoses.labels(group, kind).set(0)
        self._diagnosed |= found

    def flushed(self, took_ms: int) -> None:
        """Count a flush."""
        self._flushes.observe(took_ms / 1000)

    def observe(self, latency: RequestLatency) -> None:
        """Publish the latencies of answers from now on."""
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
            self._states["member_count"].labels(group).set(0)
            self._states["unowned"].labels(group).set(queues)
        present = {group for group, _ in messages}
        for group in self._ownerless - present:  # The group was deleted.
            self._states["unowned"].labels(group).set(0)
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
        """Set how many dead letters each group has ever had here.

        A group with other time series starts at 0, because Prometheus sees no increase when a series begins.
        Idle groups have no series, which would use up `GROUPS_MAX`.
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


def _by_age(age_ms: float) -> float:
    """Return the key for the greatest age: an unknown age exceeds only 0."""
    return 0.5 if isnan(age_ms) else age_ms


def _together(one: float, other: float) -> float:
    """Return the sum of the known lags; if that is 0 and one is unknown, unknown."""
    known = sum(each for each in (one, other) if not isnan(each))
    return nan if known == 0 and (isnan(one) or isnan(other)) else known
