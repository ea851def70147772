"""The simulation: one seed, from an empty disk to a verdict.

set up ─► load and faults ─► faults end ─► settled? ─► the end: every broker dies and recovers
"""

import gc
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from libramq.clock import MonotonicMs
from libramq.testing.cluster import Cluster
from libramq.testing.history import LINES_KEPT, Violation
from libramq.testing.invariants import INVARIANTS, KAFKA_INVARIANTS, Invariant
from libramq.testing.scenarios.faults import Faults
from libramq.testing.scenarios.happening import Happening
from libramq.testing.scenarios.scenario import KAFKA_AFTER_MS, Scenario, draw_scenario
from libramq.testing.survey import Survey
from libramq.testing.world import World

#: The interval between checks of the cluster.
STEP_MS: Final = 100
#: By then topics and routes exist; members start.
SET_UP_MS: Final = 800
#: The longest that invariants may take: an orderly queue waits a second for each failure of its handler, and
#: a few hundred messages with many failures take minutes.
SETTLED_MS_MAX: Final = 600_000
#: Ours: of a collection of each generation, instead of 700, 10 and 10. It saves 6 % of a seed's time.
GARBAGE_THRESHOLDS: Final = (50_000, 10, 10)
RAISED: Final = "nothing raises"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a seed. checksum: of the log and of every byte sent."""

    seed: int
    checksum: str
    violation: Violation | None
    lines: tuple[str, ...]
    stored: int
    handled: int
    duplicates: int
    virtual_ms: int
    frames: int
    happenings: Mapping[Happening, int]

    @property
    def is_ok(self) -> bool:
        """Return whether every invariant held."""
        return self.violation is None


class _Raised(logging.Handler):
    """Collects logged errors with a traceback: exceptions of processors end in the log, not here."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, OSError):
            self.texts.append(f"{record.getMessage()}: {''.join(traceback.format_exception(error))}")


class Simulation:
    """One run.

    steps: how many of the scenario's actions happen; None: all. scenario: instead of the seed's own.
    lines_kept: of the log, for the report; None: all.
    """

    def __init__(
        self,
        seed: int,
        *,
        steps: int | None = None,
        scenario: Scenario | None = None,
        lines_kept: int | None = LINES_KEPT,
    ) -> None:
        self.scenario = scenario or draw_scenario(seed)
        self.world = World(seed, lines_kept=lines_kept)
        self._steps = steps
        self._raised = _Raised()
        with _logged_to(self._raised):
            self.cluster = Cluster(self.world, self.scenario)
        kinds = INVARIANTS + (KAFKA_INVARIANTS if self.scenario.kafka_groups else ())
        self.invariants = [invariant(self.cluster) for invariant in kinds]
        self.world.history.watchers += self.invariants
        self._stepping: list[Invariant] = []
        self._survey = Survey(self.cluster)

    def run(self) -> Report:
        """Run to the end, or to the first violated invariant."""
        violation = None
        with _logged_to(self._raised), _seldom_collected():
            try:
                self._live()
            except Violation as found:
                violation = found
            except Exception as error:
                violation = Violation(RAISED, "".join(traceback.format_exception(error)))
        world = self.world
        return Report(
            seed=world.seed,
            checksum=f"{world.history.checksum:08x}{world.network.checksum:08x}",
            violation=violation,
            lines=tuple(world.history.lines),
            stored=world.history.stored_count,
            handled=world.history.handled_count,
            duplicates=sum(getattr(invariant, "count", 0) for invariant in self.invariants),
            virtual_ms=world.time.elapsed_ms,
            frames=world.network.frame_count,
            happenings=world.history.happenings,
        )

    def _live(self) -> None:
        scenario, cluster, time = self.scenario, self.cluster, self.world.time
        self._stepping = [one for one in self.invariants if type(one).step is not Invariant.step]
        begin_ms = time.now_ms
        for topic, queues in scenario.topics.items():
            cluster.set_queues(topic, queues)
        self._advance_to(begin_ms + SET_UP_MS)
        for topic in scenario.topics:
            cluster.produce(topic, interval_ms=scenario.producer_interval_ms, body_bytes=scenario.body_bytes)
        for plan, count in zip(scenario.groups, scenario.members, strict=True):
            for _ in range(count * len(plan.topics)):
                cluster.join(plan)
        if scenario.pops is not None:
            cluster.make_pop_groups()
            for _ in range(scenario.pops.members):
                cluster.join_pops()
        time.at(begin_ms + KAFKA_AFTER_MS, cluster.kafka.join_all)
        if any(plan.handling.slow_chance for plan in scenario.groups):
            self.world.history.disturbed("handlers are slower than members may be with giving up queues")
        faults = Faults(self.world, cluster, scenario.groups)
        for at_ms, name in scenario.actions[: self._steps]:
            time.at(begin_ms + at_ms, partial(faults.happen, name))
        self._advance_to(begin_ms + scenario.duration_ms)
        faults.end()
        for producer in cluster.producers:
            producer.stop()
        for transactions in cluster.transactions:
            transactions.stop()
        for popper in cluster.poppers:
            popper.stop_forgetting()
        self._settle()
        for invariant in self.invariants:
            invariant.finish()
        self._end()

    def _settle(self) -> None:
        """Wait until the liveness conditions hold, or their time is over."""
        time = self.world.time
        healed_ms = time.now_ms
        while time.now_ms < healed_ms + SETTLED_MS_MAX:
            self._advance_to(time.now_ms + STEP_MS)
            unmet = [invariant for invariant in self.invariants if not invariant.is_met()]
            waits = any(producer.unacknowledged for producer in self.cluster.producers)
            if not unmet and not waits:
                return
            for invariant in unmet:
                if time.now_ms - max(healed_ms, invariant.progressed_ms) >= invariant.within_ms:
                    invariant.finish()

    def _end(self) -> None:
        """End every broker in some way and restart it: is everything there?"""
        chance = self.world.stream("end")
        for broker in self.cluster.brokers.values():
            chance.choice((broker.kill, broker.cut_power))()
            broker.start()

    def _advance_to(self, end_ms: MonotonicMs) -> None:
        time = self.world.time
        while time.now_ms < end_ms:
            time.run_until(min(time.now_ms + STEP_MS, end_ms))
            for invariant in self._stepping:
                invariant.step()
            self._survey.step()
            if self._raised.texts:
                raise Violation(RAISED, self._raised.texts[0])


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for cyclic garbage less often: a simulation makes little, and most of what it makes stays."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def _logged_to(handler: logging.Handler) -> Iterator[None]:
    """Send our modules' log to a handler, and nowhere else."""
    logger = logging.getLogger("libramq")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
