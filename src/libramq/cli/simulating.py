"""`libra simulate`: one simulated cluster per seed; each failure is shown with a command to reproduce it."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from libramq.cli.output import console, print_table, progress_bars
from libramq.errors import ConfigError
from libramq.testing.happening import Happening
from libramq.testing.scenarios.scenario import draw_scenario
from libramq.testing.simulation import Report, RunSeed, Simulation, run_seeds

#: The exit code of a failed test run.
EXIT_BROKEN: Final = 1
#: Events printed before a failure.
LINES_SHOWN: Final = 40


def simulate(
    first: int,
    count: int,
    *,
    steps: int | None,
    jobs: int = 1,
    keeps_going: bool = False,
    shows_log: bool = False,
    shows_kinds: bool = False,
    run: Callable[[int], Report] | None = None,
) -> int:
    """Run seeds in `jobs` processes, by default until one fails; return the exit code.

    run: runs one seed; the simulator by default. Raises ConfigError if a seed needs an extra that is missing.
    """
    out, began = console(), time.monotonic()
    if run is None:
        _require_kafka(range(first, first + count))
        run = RunSeed(steps=steps, lines_kept=None if shows_log else LINES_SHOWN)
    totals = _Totals()
    with (
        contextlib.closing(run_seeds(range(first, first + count), run, jobs=jobs)) as reports,
        progress_bars(transient=True) as progress,
    ):
        task = progress.add_task("seeds", total=count)
        for report in reports:
            totals.add(report)
            if shows_log or not report.is_ok:
                progress.stop()
                for line in report.lines:
                    out.print(line, soft_wrap=True)
            if not report.is_ok:
                _explain(report, steps, searches=not keeps_going)
                if not keeps_going:
                    return EXIT_BROKEN
            progress.advance(task)
    if shows_kinds:
        rows = [(kind.value, totals.seeds[kind], totals.times[kind]) for kind in Happening]
        print_table(("what happened", "in seeds", "times"), rows)
    totals.print_summary(first, count, max(time.monotonic() - began, 0.001))
    return EXIT_BROKEN if totals.failed else 0


def _require_kafka(seeds: Iterable[int]) -> None:
    """Raise ConfigError if a seed has Kafka groups and the extra that they need is missing."""
    try:
        import libramq.testing.nodes.kafka_port  # noqa: F401
    except ModuleNotFoundError as missing:
        for seed in seeds:
            if draw_scenario(seed).kafka_groups:
                what = f"seed {seed} has a Kafka group and needs {missing.name}"
                raise ConfigError(f"{what}: pip install 'libramq[kafka]'") from None


class _Totals:
    """Sums over reports."""

    def __init__(self) -> None:
        self.stored = self.virtual_ms = 0
        self.times: Counter[Happening] = Counter()
        self.seeds: Counter[Happening] = Counter()
        self.failed: list[int] = []

    def add(self, report: Report) -> None:
        self.stored += report.stored
        self.virtual_ms += report.virtual_ms
        self.times.update(report.happenings)
        self.seeds.update(report.happenings.keys())
        if not report.is_ok:
            self.failed.append(report.seed)

    def print_summary(self, first: int, count: int, seconds: float) -> None:
        out = console()
        verdict = f"{len(self.failed)} failed" if self.failed else "every invariant held"
        out.print(
            f"{count} seeds from {first} on: {verdict}. {self.stored} messages, {self.virtual_ms / 1000:.0f}"
            f" simulated seconds in {seconds:.1f} s ({count / seconds:.1f} seeds a second)."
        )
        if self.failed:
            out.print(f"failed: {' '.join(map(str, self.failed))}", soft_wrap=True)


def _explain(report: Report, steps: int | None, *, searches: bool) -> None:
    """Print the violation and a command to reproduce it; searches: also one with the fewest actions."""
    violation = report.violation
    assert violation is not None
    repeat = f"repeat it: {_command(report.seed, steps)}"
    _print(
        "", f"seed {report.seed} broke the rule that {violation.invariant}:", f"  {violation.what}", repeat
    )
    if searches:  # This may take long.
        _print(f"with as few steps as possible: {_command(report.seed, _fewest_steps(report, steps))}")


def _command(seed: int, steps: int | None) -> str:
    return f"libra simulate --seed {seed}{'' if steps is None else f' --steps {steps}'} --log"


def _print(*lines: str) -> None:
    for line in lines:
        console().print(line, soft_wrap=True)


def _fewest_steps(report: Report, steps: int | None) -> int:
    """Return the least number of the scenario's actions that violates the same invariant."""
    assert report.violation is not None
    all_steps = len(Simulation(report.seed).scenario.actions)
    most = all_steps if steps is None else min(steps, all_steps)
    for fewer in range(most):
        again = Simulation(report.seed, steps=fewer).run().violation
        if again is not None and again.invariant == report.violation.invariant:
            return fewer
    return most
