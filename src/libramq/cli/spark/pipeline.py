"""The pipeline command: shows what a run would read and write, or runs it with its progress."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from libramq.cli import options

if TYPE_CHECKING:
    from libramq.spark.pipeline.plan import Plan

app = typer.Typer(help="Run pipelines on Spark: topics into tables, reports of groups.", no_args_is_help=True)

#: How many queues a plan lists.
QUEUES_SHOWN_MAX: Final = 40


@app.callback()
def pipeline() -> None:
    """Run pipelines on Spark: topics into tables, reports of groups."""


@app.command(no_args_is_help=True)
def run(
    name: Annotated[str, typer.Argument(help="ingest, rebalance_report or lag_report.")],
    config: Annotated[
        Path | None, typer.Option("--config", help="A TOML file; docs/pipelines.md lists its keys.")
    ] = None,
    namesrv: options.Namesrv = None,
    master: options.Master = "local[*]",
    archive: options.Archive = None,
    conf: options.Conf = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be read and written, and change nothing.")
    ] = False,
    log_level: options.Log = options.LogLevel.ERROR,
) -> None:
    """Run a pipeline. After a crash or Ctrl-C, running it again continues where it stopped."""
    from libramq import logs
    from libramq.cli.spark.runs import ProgressDisplay, spark_session, spark_settings
    from libramq.spark.pipeline.registry import pipeline
    from libramq.transport import access

    logs.log_to_stderr(log_level)
    settings = spark_settings(conf or [])
    chosen = pipeline(name, config, namesrv=namesrv, access=access.environment_properties())
    plan = chosen.plan()  # Report errors before a Java machine starts.
    if dry_run:
        _show(plan)
        return
    if plan.nothing_to_do:
        print(f"{plan.nothing_to_do}; Spark was not started")
        return
    with (
        ProgressDisplay(name, after_stop="run it again and it continues") as on_progress,
        spark_session(
            f"libra pipeline {name}", master=master, log_level=log_level, settings=settings, archive=archive
        ) as spark,
    ):
        outcome = chosen.run(spark, on_progress)
    print(outcome.sentence)
    for file in outcome.files:
        print(file)


def _show(plan: "Plan") -> None:
    from libramq.cli import output
    from libramq.spark.reading.positions import queue_key

    if plan.reads:
        shown = plan.reads[:QUEUES_SHOWN_MAX]
        output.print_table(
            ("queue", "from", "to", "messages"),
            [(queue_key(part.queue), part.start, part.end, part.row_count) for part in shown],
        )
        if len(shown) < len(plan.reads):
            print(f"and {len(plan.reads) - len(shown)} more queues")
        print(f"{plan.message_count:,} messages of {len(plan.reads)} queues would be read into\n")
    for table in plan.tables:
        parts = f", partitioned by {', '.join(table.partitioned_by)}" if table.partitioned_by else ""
        print(f"{table.name}: {table.path} ({table.format}{parts})")
        output.print_table(("column", "type"), list(table.columns.items()))
    for remark in plan.remarks:
        print(remark)
    print("nothing was changed")
