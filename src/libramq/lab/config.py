"""The configuration of the laboratory: keys of a TOML file, or options with the same names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from libramq.errors import ConfigError
from libramq.lab.entrant import STRATEGIES, Entrant, entrant
from libramq.lab.histories import KINDS, Size, shares
from libramq.lab.recorded import KIND as RECORDED
from libramq.spark.options import hint_at
from libramq.spark.pipeline.config import read_config

#: Ours: ten times the largest experiment ever run.
MEMBERS_MAX: Final = 1_000_000
#: Ours: ten times the largest experiment ever run.
QUEUES_MAX: Final = 10_000_000
#: Ours: ten times the largest group ever run, which must fit in one task's memory.
GROUP_MEMBERS_MAX: Final = 10_000
#: Ours: ten times the largest group ever run, which must fit in one task's memory.
GROUP_QUEUES_MAX: Final = 100_000
TOPICS_MAX: Final = 1_000
SEED_MAX: Final = (1 << 63) - 1
#: Ours: the default size of a group.
GROUP_MEMBERS: Final = 100

#: `--small`: an experiment that takes seconds.
SMALL: Final[Mapping[str, int]] = MappingProxyType({"members": 200, "queues": 800, "groups": 10})


class LabConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the laboratory's file.

    members, queues: totals over all groups. groups: by default one per hundred members, at least one per
    history.
    topics: the number in each group. histories, strategies: by default all. events: name servers, or the
    directory of a rebalance_report. seed: for the synthetic histories. output: a directory.
    """

    members: int = 2_000
    queues: int = 20_000
    groups: int | None = None
    topics: int = 4
    histories: list[str] | None = None
    strategies: list[str] | None = None
    events: str | None = None
    seed: int = 1
    output: str = "lab"


class SyntheticGroup(NamedTuple):
    """The parameters of a synthetic group, from which any task can generate it."""

    kind: str
    name: str
    size: Size
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The experiment to run. events: the source of recorded histories, or None."""

    groups: Sequence[SyntheticGroup]
    entrants: Sequence[Entrant]
    events: str | None
    with_recorded: bool
    output: Path


def read_experiment(path: Path | None = None, *, small: bool = False, **overrides: Any) -> Experiment:
    """Read an experiment; overrides other than None take precedence. ConfigError names key and remedy."""
    named = {key: value for key, value in overrides.items() if value is not None}
    config = read_config(LabConfig, path, **{**(SMALL if small else {}), **named})
    kinds = _kinds(config)
    synthetic = [kind for kind in kinds if kind != RECORDED]
    entrants = [entrant(name) for name in _once("strategies", config.strategies or STRATEGIES)]
    if "://" in config.output or not config.output:
        raise ConfigError(f"output={config.output!r}: give a directory of this machine")
    return Experiment(
        groups=_groups(config, synthetic) if synthetic else (),
        entrants=entrants,
        events=config.events,
        with_recorded=RECORDED in kinds,
        output=Path(config.output).absolute(),
    )


def _kinds(config: LabConfig) -> Sequence[str]:
    allowed = (*KINDS, RECORDED)
    if config.histories is None:
        return allowed if config.events is not None else tuple(KINDS)
    for kind in config.histories:
        if kind not in allowed:
            raise ConfigError(f"histories: no {kind}; {hint_at(kind, allowed)}")
    if RECORDED in config.histories and config.events is None:
        raise ConfigError(
            "histories: recorded ones need events: the name servers of LibraMQ brokers, or the directory of "
            "a rebalance_report"
        )
    if not config.histories:
        raise ConfigError(f"histories: give at least one of {', '.join(allowed)}")
    return _once("histories", config.histories)


def _groups(config: LabConfig, kinds: Sequence[str]) -> list[SyntheticGroup]:
    """Divide members and queues evenly among groups, which take turns in their kinds of history."""
    _within("members", config.members, 1, MEMBERS_MAX)
    _within("queues", config.queues, 1, QUEUES_MAX)
    _within("topics", config.topics, 2 if "subscriptions" in kinds else 1, TOPICS_MAX)
    _within("seed", config.seed, 0, SEED_MAX)
    count = config.groups
    if count is None:
        count = max(len(kinds), config.members // GROUP_MEMBERS)
    least = max(len(kinds), -(-config.members // GROUP_MEMBERS_MAX), -(-config.queues // GROUP_QUEUES_MAX))
    most = min(config.members, config.queues // config.topics)
    if least > most:
        raise ConfigError(
            f"members={config.members} and queues={config.queues} are too few for {len(kinds)} histories of "
            f"groups with {config.topics} topics; give more, or fewer histories"
        )
    _within("groups", count, least, most)
    members, queues = shares(config.members, count), shares(config.queues, count)
    digits = len(str(count))
    return [
        SyntheticGroup(
            name=f"group-{number:0{digits}}",
            kind=kinds[number % len(kinds)],
            size=Size(members=members[number], queues=queues[number], topics=config.topics),
            seed=config.seed,
        )
        for number in range(count)
    ]


def _within(key: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{key}={value}: give a whole number from {least} to {most}")


def _once(key: str, names: Sequence[str]) -> Sequence[str]:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f"{key}: {name} is named twice")
    return names
