"""The simulation: runs one seed from an empty disk to a verdict.

set up ─► load and faults ─► faults end ─► settled? ─► the end: every broker dies and recovers
"""

import gc
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from libramq.clock import MonotonicMs
from libramq.fencing import MODE_CLIENT, MODE_EPOCHS
from libramq.testing.cluster import Cluster
from libramq.testing.happening import Happening
from libramq.testing.history import LINES_KEPT, Violation
from libramq.testing.invariants import INVARIANTS, KAFKA_INVARIANTS, Invariant
from libramq.testing.scenarios.faults import Faults
from libramq.testing.scenarios.scenario import KAFKA_AFTER_MS, Scenario, draw_scenario
from libramq.testing.world import World


class Survey:
    """Counts how often each state of the cluster begins."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last: set[tuple[Happening, str]] = set()
        self._coordinators: dict[str, set[str]] = {}
        self._modes: dict[str, str] = {}

    def step(self) -> None:
        """Check the cluster after a step."""
        groups = self._cluster.groups()
        now = {*self._states(groups), *self._routes()}
        for happening, about in sorted(now - self._last):
            self._cluster.world.history.happened(happening, about)
        self._last = now
        self._look_at_coordinators(groups)

    def _states(self, groups: Iterable[str]) -> Iterator[tuple[Happening, str]]:
        for group in groups:
            members = self._cluster.alive(group)
            if any(member.is_orderly for member in members):
                yield Happening.ORDERLY, group
            if len({member.topics for member in members}) > 1:
                yield Happening.UNEQUAL, group
            if any(member.is_broadcasting for member in members):
                yield Happening.BROADCASTING, group
                continue
            if len({member.plan.is_stock for member in members}) > 1:
                yield Happening.MIXED, group
            elif members:
                yield (Happening.STOCK if members[0].plan.is_stock else Happening.COORDINATED), group
            if members and all(member.plan.asks for member in members):
                yield Happening.ASKING, group

    def _routes(self) -> Iterator[tuple[Happening, str]]:
        running = [each for each in self._cluster.name_servers if each.process.is_alive]
        for topic in self._cluster.topics if len(running) > 1 else ():
            reported = [each.route(topic) for each in running]
            if any(one != reported[0] for one in reported):
                yield Happening.ROUTES_DIFFER, topic

    def _look_at_coordinators(self, groups: Iterable[str]) -> None:
        history = self._cluster.world.history
        for group in groups:
            coordinators = set()
            for name, node in self._cluster.brokers.items():
                view = node.broker.members.coordination.group(group) if node.broker is not None else None
                if view is None or not view.members:
                    continue
                coordinators.add(name)
                if (self._modes.get(group), view.mode) == (MODE_CLIENT, MODE_EPOCHS):
                    history.happened(Happening.MODE_BACK, group)
                self._modes[group] = view.mode
            before = self._coordinators.get(group)
            if before and coordinators - before:
                history.happened(Happening.TAKEN_OVER, group)
            if coordinators:
                self._coordinators[group] = coordinators


#: The interval between checks of the cluster.
STEP_MS: Final = 100
#: By this time topics and routes exist, and members start.
SET_UP_MS: Final = 800
#: The longest that a cluster may take to settle: an orderly queue waits a second after each failure of its
#: handler, so a few hundred messages with many failures take minutes.
SETTLED_MS_MAX: Final = 600_000
#: Ours: gc thresholds by generation, instead of 700, 10 and 10. They save 6 % of a seed's time.
GARBAGE_THRESHOLDS: Final = (50_000, 10, 10)
RAISED: Final = "nothing raises"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a seed. checksum: over the log and every byte sent."""

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
    """Collects logged errors with a traceback, because processors log exceptions instead of raising them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, OSError):
            self.texts.append(f"{record.getMessage()}: {''.join(traceback.format_exception(error))}")


class Simulation:
    """One run.

    steps: the number of the scenario's actions to perform; None for all. scenario: replaces the seed's own.
    lines_kept: the last lines of the log to report; None for all.
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
        """Run to the end or to the first violated invariant."""
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
            self.world.history.disturbed("handlers are slower than the revoke timeout")
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
        """Wait until all liveness conditions hold; raises Violation if one exceeds its time."""
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
        """Kill every broker or cut its power, and restart it, so that invariants check its recovery."""
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
    """Collect cyclic garbage less often: a simulation makes little, and most of its objects stay alive."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def _logged_to(handler: logging.Handler) -> Iterator[None]:
    """Send LibraMQ's log only to this handler."""
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


#: Ours: seeds for each process that may run ahead of the awaited report. This bounds memory while a slow seed
#: delays the others, but keeps all processes busy.
SEEDS_AHEAD: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeed:
    """Runs one seed; a plain value that can be sent to another process.

    steps, lines_kept: as in `Simulation`.

    Simulations are single-threaded and independent, so N processes do N times the work. A seed's report does
    not depend on the process or on the number of jobs.
    """

    steps: int | None = None
    lines_kept: int | None = 0

    def __call__(self, seed: int) -> Report:
        """Return the report of a seed."""
        return Simulation(seed, steps=self.steps, lines_kept=self.lines_kept).run()


def run_seeds(
    seeds: Iterable[int], run: Callable[[int], Report], *, jobs: int = 1
) -> Generator[Report, None, None]:
    """Yield one report per seed, in order.

    With more than one job, `run` is pickled and called in that many processes. Closing the iterator early
    drops the seeds that have not begun and waits for the running ones.
    """
    if jobs == 1:
        yield from map(run, seeds)
        return
    # Spawned, not forked: the caller may have threads, such as a progress bar's, which do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_belong_to_the_parent)
    pending: deque[Future[Report]] = deque()
    try:
        for seed in seeds:
            pending.append(pool.submit(run, seed))
            if len(pending) >= jobs * SEEDS_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _belong_to_the_parent() -> None:
    """Ignore Ctrl-C, because the parent stops the pool, and exit if the parent dies.

    A terminal sends Ctrl-C to every process. If the parent is killed, the pool's queue does not end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_the_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
