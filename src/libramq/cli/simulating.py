"""`libra simulate`: many simulated clusters, one a seed; what broke, and how to see it again."""

import time
from collections import Counter
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from libramq.cli.output import console, print_table
from libramq.testing.happening import Happening
from libramq.testing.simulation import Report, Simulation

#: As a failed check of a test.
EXIT_BROKEN: Final = 1
#: The last events of a failure.
LINES_SHOWN: Final = 40


def simulate(first: int, count: int, *, steps: int | None, shows_log: bool, shows_kinds: bool) -> int:
    """Run seeds until one fails; the exit code."""
    out, began = console(), time.monotonic()
    stored = virtual_ms = 0
    times: Counter[Happening] = Counter()
    seeds: Counter[Happening] = Counter()
    with _progress(count) as progress:
        task = progress.add_task("seeds", total=count)
        for seed in range(first, first + count):
            report = Simulation(seed, steps=steps, lines_kept=None if shows_log else LINES_SHOWN).run()
            stored += report.stored
            virtual_ms += report.virtual_ms
            times.update(report.happenings)
            seeds.update(report.happenings.keys())
            if shows_log or not report.is_ok:
                progress.stop()
                for line in report.lines:
                    out.print(line, markup=False, highlight=False, soft_wrap=True)
            if not report.is_ok:
                _explain(report, steps)
                return EXIT_BROKEN
            progress.advance(task)
    if shows_kinds:
        rows = [(kind.value, seeds[kind], times[kind]) for kind in Happening]
        print_table(("what happened", "in seeds", "times"), rows)
    seconds = max(time.monotonic() - began, 0.001)
    out.print(
        f"{count} seeds from {first} on: every invariant held. {stored} messages, {virtual_ms / 1000:.0f}"
        f" simulated seconds in {seconds:.1f} s ({count / seconds:.1f} seeds a second).",
        highlight=False,
    )
    return 0


def _explain(report: Report, steps: int | None) -> None:
    violation = report.violation
    assert violation is not None
    fewest = _fewest_steps(report, steps)
    out = console()
    for line in (
        "",
        f"seed {report.seed} broke the rule that {violation.invariant}:",
        f"  {violation.what}",
        f"see it again: libra simulate --seed {report.seed} --steps {fewest} --log",
    ):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _fewest_steps(report: Report, steps: int | None) -> int:
    """How many of the scenario's actions are enough to break the same rule."""
    assert report.violation is not None
    all_steps = len(Simulation(report.seed).scenario.actions)
    most = all_steps if steps is None else min(steps, all_steps)
    for fewer in range(most):
        again = Simulation(report.seed, steps=fewer).run().violation
        if again is not None and again.invariant == report.violation.invariant:
            return fewer
    return most


def _progress(count: int) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
    )
