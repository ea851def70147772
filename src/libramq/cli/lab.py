"""The lab command: strategies compared under histories, as a table here and as files."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from libramq.cli import options

if TYPE_CHECKING:
    from libramq.lab.laboratory import Laboratory, LabPlan, Result

app = typer.Typer(
    help="Compare allocation strategies under membership histories, on Spark.", no_args_is_help=True
)


@app.callback()
def lab() -> None:
    """Compare allocation strategies under membership histories, on Spark."""


Histories = Annotated[
    str | None,
    typer.Option(
        help="rolling_deploy, autoscaling, flapping, zone_loss, subscriptions, recorded; separated by "
        "commas, all by default."
    ),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        help="By name, separated by commas; NAME@clients, NAME@coordinator say who computes, "
        "MODULE:FUNCTION is one of yours. All by default."
    ),
]
Events = Annotated[
    str | None,
    typer.Option(
        help="Take recorded histories, and what moves cost, from these name servers' LibraMQ brokers or "
        "from the directory of a rebalance_report."
    ),
]


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Option("--config", help="A TOML file with these options' names as keys.")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Ten small groups: less than a minute.")] = False,
    members: Annotated[int | None, typer.Option(help="Of all groups together; 2,000.")] = None,
    queues: Annotated[int | None, typer.Option(help="Of all groups together; 20,000.")] = None,
    groups: Annotated[
        int | None, typer.Option(help="How many groups, a history each; one for a hundred members.")
    ] = None,
    topics: Annotated[int | None, typer.Option(help="Of each group; 4.")] = None,
    histories: Histories = None,
    strategies: Strategies = None,
    events: Events = None,
    seed: Annotated[int | None, typer.Option(help="Of synthetic histories; 1.")] = None,
    output: Annotated[str | None, typer.Option(help="Directory of tables and report; ./lab.")] = None,
    master: options.Master = "local[*]",
    archive: options.Archive = None,
    conf: options.Conf = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run and written, and touch nothing.")
    ] = False,
    log_level: options.Log = options.LogLevel.ERROR,
) -> None:
    """Run the laboratory. The same seed gives the same figures, but for how long strategies compute."""
    from libramq.cli import logs
    from libramq.cli.spark_runs import Teller, spark_session, spark_settings

    logs.set_up(log_level)
    settings = spark_settings(conf or [])
    laboratory = _laboratory(
        config,
        small=small,
        members=members,
        queues=queues,
        groups=groups,
        topics=topics,
        histories=_names(histories),
        strategies=_names(strategies),
        events=events,
        seed=seed,
        output=output,
    )
    plan = laboratory.plan()  # What is wrong is said before a Java machine starts.
    if dry_run:
        _show_plan(plan)
        return
    with (
        spark_session(
            "libra lab", master=master, log_level=log_level, settings=settings, archive=archive
        ) as spark,
        Teller("lab") as tell,
    ):
        result = laboratory.run(spark, tell)
    _show(result)


def _laboratory(config: Path | None, *, small: bool, **given: object) -> "Laboratory":
    from libramq.cli import access
    from libramq.errors import ConfigError

    try:
        from libramq.lab.config import read_experiment
        from libramq.lab.laboratory import Laboratory
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("libramq"):
            raise
        raise ConfigError(f"the laboratory needs {error.name}: pip install 'libramq[spark,java]'") from None
    return Laboratory(read_experiment(config, small=small, **given), access=access.properties())


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _show_plan(plan: "LabPlan") -> None:
    from libramq.cli import output

    experiment = plan.experiment
    if experiment.groups:
        members: Counter[str] = Counter()
        queues: Counter[str] = Counter()
        for group in experiment.groups:
            members[group.kind] += group.size.members
            queues[group.kind] += group.size.queues
        count = Counter(group.kind for group in experiment.groups)
        output.print_table(
            ("history", "groups", "members", "queues"),
            [(kind, count[kind], members[kind], queues[kind]) for kind in count],
        )
    if plan.recorded is not None:
        used = "recorded histories and costs" if experiment.with_recorded else "costs"
        print(f"{used} from {plan.recorded}")
    print(f"strategies: {', '.join(entrant.name for entrant in experiment.entrants)}")
    for file in plan.files:
        print(f"would be written: {file}")
    print("nothing was touched")


def _show(result: "Result") -> None:
    from libramq.cli import output
    from libramq.lab.ranking import COLUMNS, ranking

    output.print_table(COLUMNS, ranking(result.strategies))
    print(result.sentence)
    for file in result.files:
        print(file)
