"""The scenario of a seed: draws a cluster, its load and its faults, each kind with its likelihood."""

import random
from dataclasses import dataclass, replace
from typing import Final

from libramq.testing.cluster import ClusterPlan, GroupPlan, PopPlan
from libramq.testing.history import KafkaGroupPlan
from libramq.testing.nodes.consumer_node import Handling
from libramq.testing.scenarios.faults import FAULTS

#: In a calm scenario nothing fails: members join and leave gracefully.
CALM: Final = (
    *("join", "join", "stop", "stop", "stop_stock", "grow", "deafen", "join_many", "set_clock") * 8,
    "join_hundred",
)
ROUGH: Final = (
    "join", "join", "join_many", "stop", "stop_stock", "kill", "kill", "pause", "pause", "flap", "bounce",
    "bounce", "remove", "grow", "restart_broker", "kill_broker", "kill_broker", "cut_power", "cut_power",
    "cut_off_broker", "cut_off_broker", "restart_name_server", "split_name_servers", "set_clock", "partition",
    "partition", "partition", "reset", "reset", "deafen", "spoil_disk",
)  # fmt: skip
#: Drawn from separate streams, so that existing seeds keep their histories.
OPERATIONS: Final = ("make_again", "make_again", "delete_group", "reset_offsets", "shrink")
CUT_OFF: Final = ("partition", "partition", "pause")
SPLITS: Final = ("split_brokers", "split")
SPLITS_CHANCE: Final = 0.15
SLAVES: Final = ("end_master", "end_master", "end_slave", "part_slave")
SLAVES_CHANCE: Final = 0.1
SYNC_MASTER_CHANCE: Final = 0.5
ACTING_CHANCE: Final = 0.08
#: Further faults of a master with acting slaves. They happen at PAIRS_AT_MS, when the slaves know the master,
#: and the scenario continues for PAIRS_MS.
PAIRS: Final = ("end_acting", "end_acting", "freeze_master")
PAIRS_CHANCE: Final = 0.08
PAIRS_AT_MS: Final = (7_000, 12_000)
PAIRS_MS: Final = 55_000
#: The chances of popping groups without acting slaves, higher if a SYNC_MASTER waits for its slave.
POPS_CHANCE: Final = 0.08
WAITING_POPS_CHANCE: Final = 0.5
ONLY_SLAVES_CHANCE: Final = 0.5
POPS: Final = ("reset_pops", "reset_pops", "set_back_in_time", "kill_popper")
#: The chance that only masters fail, so that delayed messages must arrive exactly once.
ONLY_MASTERS_CHANCE: Final = 0.5
#: Short enough for members to find a slave while its master is away.
ROUTE_REFRESH_MS: Final = 500
SHORT_SESSIONS_CHANCE: Final = 0.3
#: Handlers slower than the revoke timeout, whose last commits are refused.
SLOW_CHANCE: Final = 0.02
SLOW_MS: Final = 1_500
SLOW_REVOKE_MS: Final = 1_000
#: The chance of Kafka's groups; topics then keep their queues (NOT_WITH_KAFKA).
KAFKA_CHANCE: Final = 0.08
KAFKA_CALM: Final = ("kafka_join", "kafka_stop", "grow")
KAFKA_ROUGH: Final = (
    "kafka_join", "kafka_join", "kafka_stop", "kafka_kill", "kafka_sleep", "kafka_sleep", "kafka_bounce",
    "kafka_bounce", "kafka_cut_off", "end_coordinator", "end_coordinator", "grow",
)  # fmt: skip
NOT_WITH_KAFKA: Final = ("make_again", "shrink")
#: Separated brokers may number new partitions differently (docs/design/kafka-cluster.md).
PARTED: Final = ("partition", "split", "split_brokers", "split_name_servers")
#: How much later Kafka's members, and then all faults, begin: brokers first learn of each other and their
#: topics.
KAFKA_AFTER_MS: Final = 2_500
#: Longer than a session of Kafka's members.
LONG_CHANCE: Final = 0.3
LONG_MS: Final = 65_000
CALM_SHARE: Final = 0.25
#: Chances that a member is a stock one: none of the group, all, or some.
STOCK_CHANCES: Final = (0.0, 0.0, 0.0, 1.0, 0.3)
#: Chances that a stock member asks for its queues: none of the group, all, or some.
ASK_CHANCES: Final = (0.0, 0.0, 1.0, 1.0, 0.5)
BROADCASTING_CHANCE: Final = 0.08
#: The chance of frequently failing handlers and few redeliveries, so that messages become dead letters.
DEAD_LETTER_CHANCE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(ClusterPlan):
    """A cluster to simulate, with its load. actions: (ms after the beginning, name of one of FAULTS).

    With acting slaves, some messages are delayed. Kafka's groups read the same topics.
    """

    topics: dict[str, int]
    groups: tuple[GroupPlan, ...]
    members: tuple[int, ...]
    producer_interval_ms: int
    body_bytes: int
    duration_ms: int
    actions: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        for _, name in self.actions:
            assert name in FAULTS, f"there is no fault {name}"


def draw_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    scenario = _with_splits(_with_short_sessions(_with_operations(_draw(seed), seed), seed), seed)
    scenario = _with_acting_slaves(_with_slaves(scenario, seed), seed)
    scenario = _with_kafka(_with_pairs(scenario, seed), seed)
    return _with_pops(scenario, seed)


def _with_pops(scenario: Scenario, seed: int) -> Scenario:
    """Add popping groups to some scenarios without Kafka's groups; acting slaves always come with some.

    If a SYNC_MASTER waits for its slave, only the slave fails in half of them.
    """
    chance = random.Random(f"{seed}/groups that pop")
    likely = WAITING_POPS_CHANCE if scenario.waits_for_slaves else POPS_CHANCE
    if scenario.kafka_groups or scenario.has_acting_slaves or chance.random() >= likely:
        return scenario
    duration_ms = scenario.duration_ms + chance.randint(5, 15) * 1_000
    is_calm = scenario.waits_for_slaves and chance.random() < ONLY_SLAVES_CHANCE
    menu = POPS if not scenario.waits_for_slaves else ("lose_slave",) if is_calm else (*POPS, "lose_slave")
    actions = [each for each in scenario.actions if each[1] in CALM or not is_calm]
    more = [
        (chance.randint(3_000, duration_ms - 1_000), chance.choice(menu)) for _ in range(chance.randint(1, 3))
    ]
    plan = PopPlan(
        members=chance.randint(1, 2),
        invisible_ms=chance.choice((1_000, 3_000)),
        retries_max=1 if is_calm else chance.choice((1, 2, 16)),
        handling=Handling(
            duration_ms_max=chance.choice((5, 100)),
            concurrency=chance.choice((5, 20)),
            slow_chance=chance.choice((0.0, 0.02)),
            slow_ms=5_000,
        ),
    )
    return replace(scenario, pops=plan, duration_ms=duration_ms, actions=tuple(sorted([*actions, *more])))


def _with_pairs(scenario: Scenario, seed: int) -> Scenario:
    """Give the first of several brokers acting slaves, and freeze the master or end an acting slave.

    Applies to some scenarios without slaves. Nothing else fails, so that delayed messages must arrive exactly
    once.
    """
    chance = random.Random(f"{seed}/pairs whose slaves act")
    if scenario.slave_count or scenario.broker_count == 1 or chance.random() >= PAIRS_CHANCE:
        return scenario
    at_ms, has_second = chance.randint(*PAIRS_AT_MS), chance.random() < 0.5
    actions = [each for each in scenario.actions if each[1] in CALM and each[1] != "set_clock"]
    return replace(
        scenario,
        slave_count=1,
        has_acting_slaves=True,
        has_second_slaves=has_second,
        has_long_pops=True,
        # With two slaves, the master would wait for only one.
        waits_for_slaves=not has_second and chance.random() < SYNC_MASTER_CHANCE,
        duration_ms=at_ms + PAIRS_MS,
        groups=tuple(
            replace(
                group, route_refresh_ms=ROUTE_REFRESH_MS, handling=replace(group.handling, slow_chance=0.0)
            )
            for group in scenario.groups
        ),
        actions=tuple(sorted([*actions, (at_ms, chance.choice(PAIRS))])),
    )


def _with_kafka(scenario: Scenario, seed: int) -> Scenario:
    """Add Kafka's groups to some scenarios without slaves."""
    chance = random.Random(f"{seed}/groups of Kafka's clients")
    if scenario.slave_count or chance.random() >= KAFKA_CHANCE:
        return scenario
    is_parted = scenario.broker_count > 1 and any(each[1] in PARTED for each in scenario.actions)
    left_out = NOT_WITH_KAFKA + (("grow",) if is_parted else ())
    actions = [(at_ms + KAFKA_AFTER_MS, name) for at_ms, name in scenario.actions if name not in left_out]
    is_calm = all(each[1] in CALM for each in actions)
    duration_ms = scenario.duration_ms + KAFKA_AFTER_MS + chance.randint(2, 10) * 1_000
    first_ms, last_ms = KAFKA_AFTER_MS + 1_000, duration_ms - 2_000
    menu = [each for each in (KAFKA_CALM if is_calm else KAFKA_ROUGH) if each not in left_out]
    more = [(chance.randint(first_ms, last_ms), chance.choice(menu)) for _ in range(chance.randint(2, 8))]
    is_long = not is_calm and chance.random() < LONG_CHANCE
    if is_long:
        more.append((first_ms, "kafka_oversleep"))
    topics = tuple(scenario.topics)
    groups = tuple(
        KafkaGroupPlan(
            name=f"K{number}",
            topics=topics[: chance.randint(1, len(topics))],
            members=chance.randint(1, 4),
            assignor=chance.choice((None, "uniform", "range")),
            static_chance=chance.choice((0.0, 0.0, 0.5, 1.0)),
            rebalance_ms=chance.choice((2_000, 5_000, 60_000)),
            revoke_ms_max=chance.choice((5, 50, 1_000)),
            commit_ms=chance.choice((300, 1_000, 5_000)),
        )
        for number in range(1, chance.choice((1, 1, 1, 2)) + 1)
    )
    return replace(
        scenario,
        kafka_groups=groups,
        duration_ms=duration_ms + (LONG_MS if is_long else 0),
        producer_interval_ms=max(scenario.producer_interval_ms, 300 if is_long else 0),
        actions=tuple(sorted([*actions, *more])),
    )


def _with_acting_slaves(scenario: Scenario, seed: int) -> Scenario:
    """Give the first of several brokers an acting slave in some scenarios without slaves.

    No clock is set in these, because timer messages could then be delivered an hour later.
    """
    chance = random.Random(f"{seed}/acting slaves of a scenario")
    if scenario.slave_count or scenario.broker_count == 1 or chance.random() >= ACTING_CHANCE:
        return scenario
    actions = [each for each in scenario.actions if each[1] != "set_clock"]
    if chance.random() < ONLY_MASTERS_CHANCE:
        actions = [each for each in actions if each[1] in CALM]
    first_ms, last_ms = 2_000, 2_000 + chance.randint(4, 30) * 1_000
    more = [
        (chance.randint(first_ms, last_ms), chance.choice(SLAVES if actions else SLAVES[:1]))
        for _ in range(chance.randint(1, 3))
    ]
    return replace(
        scenario,
        slave_count=1,
        has_acting_slaves=True,
        duration_ms=max(scenario.duration_ms, last_ms + 10_000),
        groups=tuple(replace(group, route_refresh_ms=ROUTE_REFRESH_MS) for group in scenario.groups),
        actions=tuple(sorted([*actions, *more])),
        waits_for_slaves=chance.random() < SYNC_MASTER_CHANCE,
    )


def _with_slaves(scenario: Scenario, seed: int) -> Scenario:
    """Give the first broker a slave in some scenarios, and make either fail."""
    chance = random.Random(f"{seed}/pairs of the scenario")
    if chance.random() >= SLAVES_CHANCE:
        return scenario
    duration_ms = scenario.duration_ms + chance.randint(2, 6) * 1_000
    more = [
        (chance.randint(1_500, duration_ms - 2_000), chance.choice(SLAVES))
        for _ in range(chance.randint(1, 4))
    ]
    return replace(
        scenario,
        slave_count=1,
        duration_ms=duration_ms,
        groups=tuple(replace(group, route_refresh_ms=ROUTE_REFRESH_MS) for group in scenario.groups),
        actions=tuple(sorted([*scenario.actions, *more])),
        waits_for_slaves=chance.random() < SYNC_MASTER_CHANCE,
    )


def _with_operations(scenario: Scenario, seed: int) -> Scenario:
    """Add operators' actions."""
    chance = random.Random(f"{seed}/operations of the scenario")
    count = chance.choice((0, 0, 1, 2))
    last_ms = scenario.duration_ms - 1_000
    more = [(chance.randint(1_000, last_ms), chance.choice(OPERATIONS)) for _ in range(count)]
    return replace(scenario, actions=tuple(sorted([*scenario.actions, *more])))


def _with_splits(scenario: Scenario, seed: int) -> Scenario:
    """Separate brokers in some scenarios, or split all processes into two halves."""
    chance = random.Random(f"{seed}/splits of the scenario")
    if scenario.broker_count == 1 or chance.random() >= SPLITS_CHANCE:
        return scenario
    last_ms = scenario.duration_ms - 1_000
    more = [(chance.randint(1_000, last_ms), chance.choice(SPLITS)) for _ in range(chance.randint(1, 2))]
    return replace(scenario, actions=tuple(sorted([*scenario.actions, *more])))


def _with_short_sessions(scenario: Scenario, seed: int) -> Scenario:
    """Make sessions shorter than partitions and pauses in some scenarios, and add more of both.

    In half of these, a handler sometimes takes longer than its member's revoke timeout.
    """
    chance = random.Random(f"{seed}/sessions of the scenario")
    if chance.random() >= SHORT_SESSIONS_CHANCE:
        return scenario
    duration_ms = scenario.duration_ms + chance.randint(2, 8) * 1_000
    last_ms = duration_ms - 2_000
    more = [(chance.randint(1_500, last_ms), chance.choice(CUT_OFF)) for _ in range(chance.randint(1, 4))]
    is_slow = chance.random() < 0.5
    return replace(
        scenario,
        duration_ms=duration_ms,
        groups=tuple(
            replace(
                group,
                session_ms=chance.choice((1_000, 2_000, 3_000)),
                revoke_timeout_ms=SLOW_REVOKE_MS if is_slow else group.revoke_timeout_ms,
                handling=replace(group.handling, slow_chance=SLOW_CHANCE, slow_ms=SLOW_MS)
                if is_slow
                else group.handling,
            )
            for group in scenario.groups
        ),
        actions=tuple(sorted([*scenario.actions, *more])),
    )


def _draw(seed: int) -> Scenario:
    chance = random.Random(f"{seed}/scenario")
    topics = {f"T{number}": chance.randint(1, 6) for number in range(1, chance.choice((1, 1, 2)) + 1)}
    duration_ms = chance.randint(4, 12) * 1_000
    menu = CALM if chance.random() < CALM_SHARE else ROUGH
    count = chance.randint(1, 8)
    broker_count = chance.choice((1, 1, 2, 3))
    groups = tuple(
        _group(chance, f"G{number}", topics, chance.choice(STOCK_CHANCES))
        for number in range(1, chance.choice((1, 1, 2)) + 1)
    )
    return Scenario(
        broker_count=broker_count,
        is_sync=chance.random() < 0.6,
        topics=topics,
        groups=groups,
        members=tuple(chance.randint(1, 4) for _ in groups),
        producer_interval_ms=chance.choice((40, 100, 300)),
        body_bytes=chance.choice((30, 30, 2_000)),
        duration_ms=duration_ms,
        name_server_count=chance.choice((1, 1, 2, 3)),
        actions=tuple(
            sorted((chance.randint(1_000, duration_ms - 1_000), chance.choice(menu)) for _ in range(count))
        ),
    )


def _group(chance: random.Random, name: str, topics: dict[str, int], stock_chance: float) -> GroupPlan:
    everything = tuple(topics)
    is_broadcasting = chance.random() < BROADCASTING_CHANCE
    gives_up = chance.random() < DEAD_LETTER_CHANCE
    # Members that allocate for themselves must have equal subscriptions, as in RocketMQ.
    unequal = not stock_chance and len(topics) > 1 and chance.random() < 0.3
    return GroupPlan(
        name=name,
        topics=(everything, everything[:1]) if unequal else (everything,),
        orderly=not is_broadcasting and chance.random() < 0.25,
        handling=Handling(
            duration_ms_max=chance.choice((1, 5, 50)),
            failure_chance=0.2 if gives_up else chance.choice((0.0, 0.0, 0.02)),
            concurrency=chance.choice((1, 20)),
        ),
        route_refresh_ms=chance.choice((2_000, 5_000)),
        stock_chance=0.0 if is_broadcasting else stock_chance,
        ask_chance=chance.choice(ASK_CHANCES),
        is_broadcasting=is_broadcasting,
        max_reconsume_times=1 if gives_up else -1,
        is_static=not is_broadcasting and chance.random() < 0.2,
        persist_ms=chance.choice((500, 1_000)),
        session_ms=chance.choice((3_000, 10_000, 10_000)),
    )
