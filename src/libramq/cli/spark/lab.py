"""The lab command: compares strategies under histories, and writes a table and files."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from libramq.cli import options
from libramq.cli.lazy import access, output
from libramq.errors import needs_extra

if TYPE_CHECKING:
    from libramq.lab.laboratory import Laboratory, Result

app = typer.Typer(
    help="Compare assignment strategies on Spark, by replaying how members come and go.",
    no_args_is_help=True,
)


@app.callback()
def lab() -> None:
    """Compare assignment strategies on Spark, by replaying how members come and go."""


Config = Annotated[
    Path | None, typer.Option("--config", help="A TOML file with the names of these options as keys.")
]
Groups = Annotated[
    int | None,
    typer.Option(help="Groups, each with its own history; one per hundred members by default."),
]
Histories = Annotated[
    str | None,
    typer.Option(
        help="Kinds of histories, separated by commas: rolling_deploy, autoscaling, flapping, zone_loss, "
        "subscriptions, recorded. All by default."
    ),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        help="Names of strategies, separated by commas. NAME@clients and NAME@coordinator choose who "
        "computes; MODULE:FUNCTION is a strategy of your own. All by default."
    ),
]
Events = Annotated[
    str | None,
    typer.Option(
        help="Use recorded histories and measured costs: from the LibraMQ brokers of these name servers, "
        "or from the directory of a rebalance_report."
    ),
]


@app.command()
def run(
    config: Config = None,
    small: Annotated[
        bool, typer.Option("--small", help="Run ten small groups, in less than a minute.")
    ] = False,
    members: Annotated[int | None, typer.Option(help="Members in all groups; 2,000 by default.")] = None,
    queues: Annotated[int | None, typer.Option(help="Queues in all groups; 20,000 by default.")] = None,
    groups: Groups = None,
    topics: Annotated[int | None, typer.Option(help="Topics of each group; 4 by default.")] = None,
    histories: Histories = None,
    strategies: Strategies = None,
    events: Events = None,
    seed: Annotated[int | None, typer.Option(help="Seed of synthetic histories; 1 by default.")] = None,
    output: Annotated[
        str | None, typer.Option(help="Directory for tables and report; ./lab by default.")
    ] = None,
    master: options.Master = "local[*]",
    archive: options.Archive = None,
    conf: options.Conf = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the planned runs and files, and change nothing.")
    ] = False,
    log_level: options.Log = options.LogLevel.ERROR,
) -> None:
    """Run the laboratory. The same seed gives the same results, except for computing times."""
    with needs_extra("the laboratory", "spark,java"):
        from libramq.cli.spark import runs
        from libramq.lab.config import read_experiment
        from libramq.lab.laboratory import Laboratory
    settings = runs.spark_settings(conf or [])
    experiment = read_experiment(
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
    laboratory = Laboratory(experiment, access=access.environment_properties())
    recorded = laboratory.check()  # Report errors before a Java machine starts.
    if dry_run:
        _show_plan(laboratory, recorded)
        return
    with (
        runs.ProgressDisplay("lab") as on_progress,
        runs.spark_session(
            "libra lab", master=master, log_level=log_level, settings=settings, archive=archive
        ) as spark,
    ):
        result = laboratory.run(spark, on_progress)
    _show(result)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _show_plan(laboratory: "Laboratory", recorded: str | None) -> None:
    experiment = laboratory.experiment
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
    if recorded is not None:
        used = "recorded histories and costs" if experiment.with_recorded else "costs"
        print(f"{used} from {recorded}")
    print(f"strategies: {', '.join(entrant.name for entrant in experiment.entrants)}")
    for file in laboratory.files:
        print(f"would be written: {file}")
    print("nothing was changed")


def _show(result: "Result") -> None:
    from libramq.lab.page import COLUMNS, ranking

    output.print_table(COLUMNS, ranking(result.strategies))
    print(result.sentence)
    for file in result.files:
        print(file)
