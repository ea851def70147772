"""The recorded history: brokers' records of one group's rebalances, for a replay.

        started ─ joins, departures and their kinds ─► steps
        moved   ─ the existing queues               ─► queues

Events have no subscriptions: all members are assumed to subscribe to all topics of the group.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from libramq.balance.group import counts
from libramq.clock import WallMs
from libramq.errors import ConfigError, RouteNotFound
from libramq.groups.coordinator.balance import COLLECT_MS
from libramq.groups.rebalance_event import Reason, RebalanceEvent
from libramq.groups.rebalance_history import BrokerEvent, broker_events, rebalances
from libramq.lab.cost import DEPARTURES, Costs, RecordedMove, measured_costs, recorded_moves
from libramq.lab.histories import Departure, History, Step, Topics
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.message.queue import MessageQueue
from libramq.spark.options import ACCESS_PREFIX
from libramq.spark.pipeline.batches import waiting

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession


#: The table of events in the directory of `libra pipeline run rebalance_report`.
EVENTS_TABLE: Final = "events"
_MOVES: Final = "cause string, pause_ms bigint, redelivered bigint"


class Events:
    """Rebalance events of a cluster or in a rebalance_report's directory. access: as in $LIBRA_ACCESS."""

    def __init__(self, where: str, access: Mapping[str, str]) -> None:
        self._where = where
        self._access = access
        directory = Path(where)
        self._table = directory.absolute() / EVENTS_TABLE if directory.is_dir() else None

    def check(self) -> str:
        """Describe the recorded events; raises ConfigError or a server's error if they cannot be read."""
        if self._table is not None:
            if not any(self._table.glob("batch=*/*/*.parquet")):
                raise ConfigError(
                    f"events={self._where!r}: this directory has no {EVENTS_TABLE} of a rebalance_report; "
                    "give the directory of one that has run, or name servers"
                )
            return f"the events in {self._table}"
        if ":" not in self._where:
            raise ConfigError(
                f"events={self._where!r}: there is no such directory; give that of a rebalance_report, or "
                "name servers (HOST:PORT;HOST:PORT)"
            )
        try:
            ranges = waiting(self._options(), None)
        except RouteNotFound:
            raise ConfigError(
                f"events={self._where!r}: no broker there records rebalances in {REBALANCE_EVENTS_TOPIC}, "
                "only LibraMQ's do; leave events out"
            ) from None
        return f"{sum(part.row_count for part in ranges):,} events of {self._where}"

    def by_group(self, spark: "SparkSession") -> "RDD[Any]":
        """Return a row per group: its name, and (broker, queue, offset, body) of its events.

        Each row is a partition, kept in memory because both costs and histories are computed from it.
        """
        from pyspark.sql import functions as f

        if self._table is not None:
            frame = spark.read.parquet(str(self._table))
        else:
            frame = spark.read.format("rocketmq").options(**self._options()).load()
        reports = f.sort_array(
            f.collect_list(f.struct("broker", "queueId", "offset", f.expr("cast(body as string)")))
        )
        groups = frame.groupBy("key").agg(reports).rdd.map(tuple).cache()
        numbered = groups.zipWithIndex().map(lambda row: (row[1], row[0]))
        return numbered.partitionBy(max(1, groups.count()), int).values()

    def _options(self) -> dict[str, str]:
        return {
            "subscribe": REBALANCE_EVENTS_TOPIC,
            "namesrv": self._where,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",  # Brokers may delete old events in the meantime.
            **{f"{ACCESS_PREFIX}{name}": text for name, text in self._access.items()},
        }


def events_of(rows: Iterable[Sequence[Any]]) -> Iterator[BrokerEvent]:
    """Yield the events in a group's rows."""
    return broker_events((broker, body) for broker, _, _, body in rows)


def costs_of(spark: "SparkSession", by_group: "RDD[Any]", wall_ms: WallMs) -> Costs:
    """Return the costs of moves from these events; causes without an event keep their defaults."""
    from pyspark.sql import functions as f

    def moves(row: tuple[str, Sequence[Any]]) -> Iterator[RecordedMove]:
        yield from recorded_moves(rebalances(events_of(row[1]), wall_ms=wall_ms))

    frame = spark.createDataFrame(by_group.flatMap(moves), _MOVES, verifySchema=False)
    by_cause = frame.groupBy("cause").agg(f.percentile("pause_ms", 0.5), f.avg("redelivered"))
    found = [tuple(row) for row in by_cause.collect()]
    return measured_costs(
        {cause: pause_ms for cause, pause_ms, _ in found},
        {cause: repeated for cause, _, repeated in found if repeated is not None},  # Null: unknown.
    )


#: Ours: enough for a group that rebalances once a minute for a day; later events are left out.
STEPS_MAX: Final = 1_440
KIND: Final = "recorded"


def recorded_history(group: str, reported: Iterable[BrokerEvent]) -> History | None:
    """Return the history in a group's events; None if they have no queue, join or departure."""
    events = sorted((event for _, event in reported), key=lambda event: event.at_ms)
    started = [event for event in events if event.kind == "started"]
    queues = _queues(events)
    if not queues or not started:
        return None
    members = set(started[0].members or ())
    first = sorted(members)
    topics = frozenset(queues)
    steps = _steps(started[1:], members, started[0].at_ms, topics)
    if not first or not steps:
        return None
    return History(
        group=group,
        kind=KIND,
        queues=queues,
        members=dict.fromkeys(first, topics),
        steps=steps,
        has_zones=False,
    )


def _queues(events: Iterable[RebalanceEvent]) -> dict[str, list[MessageQueue]]:
    found = {
        MessageQueue(move.topic, move.broker, move.queue)
        for event in events
        for move in event.moves or ()
        if counts(move.topic)
    }
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in sorted(found):
        by_topic.setdefault(queue.topic, []).append(queue)
    return by_topic


def _steps(
    started: Sequence[RebalanceEvent], members: set[str], begun_at_ms: int, topics: Topics
) -> list[Step]:
    """Group the events into steps: events within one collection interval of the coordinator are one step."""
    steps: list[Step] = []
    place = 0
    while place < len(started) and len(steps) < STEPS_MAX:
        at_ms = started[place].at_ms
        before, ways = set(members), dict[str, Departure]()
        reasons: dict[str, None] = {}
        while place < len(started) and started[place].at_ms <= at_ms + COLLECT_MS:
            event = started[place]
            place += 1
            if event.who is None or event.reason is None:
                continue
            if event.reason == Reason.MEMBER_JOINED:
                members.add(event.who)
            elif event.reason in DEPARTURES:
                members.discard(event.who)
                ways[event.who] = DEPARTURES[event.reason]
            reasons[event.reason] = None
        gone = {who: ways[who] for who in sorted(before - members)}
        joined = dict.fromkeys(sorted(members - before), topics)
        if gone or joined:
            what = ", ".join(reasons)
            steps.append(Step(at_ms=at_ms - begun_at_ms, what=what, gone=gone, joined=joined))
    return steps
