"""The metrics of a broker, for Prometheus: its rebalances, from their events, and its traffic, sampled.

Metrics that Apache's broker has keep Apache's names (BrokerMetricsConstant.java); others begin with libra_.
Prometheus itself adds the broker's address.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libramq.groups.rebalance_event import RebalanceEvent

#: Ours: how many groups have their own time series, some 40 each; all others share OTHERS.
GROUPS_MAX: Final = 500
#: No group can have this name.
OTHERS: Final = "(others)"
#: Ours: from imperceptible to the pauses of Apache's broker on a bad day.
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 60.0)
_GROUP: Final = "consumer_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A snapshot of a broker. refused: connections, by limit; diagnoses: the kinds found, by group."""

    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    held_pulls: int
    connections: int
    refused: Mapping[str, int]
    longest_turn_us: int
    diagnoses: Mapping[str, Collection[str]]


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
            "libra_group_queues_unowned", "Queues that no member read when all was settled."
        )

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
            self._rebalances.labels(group, event.reason or "").inc()
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
        found = {(self._label(group), kind) for group, kinds in sample.diagnoses.items() for kind in kinds}
        for group, kind in found:
            self._diagnoses.labels(group, kind).set(1)
        for group, kind in self._diagnosed - found:
            self._diagnoses.labels(group, kind).set(0)
        self._diagnosed |= found

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
