"""The pipeline command: plans or runs one of the pipelines."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from libramq.cli import options
from libramq.cli.lazy import access, output
from libramq.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from libramq.spark.pipeline.plan import OnProgress, Plan, RunResult

app = typer.Typer(help="Run pipelines on Spark: topics into tables, reports of groups.", no_args_is_help=True)

#: Class and configuration of each pipeline, in the module of its name; imported on use.
PIPELINES: Final = {
    "ingest": ("Ingest", "IngestConfig"),
    "rebalance_report": ("RebalanceReport", "RebalanceReportConfig"),
    "lag_report": ("LagReport", "LagReportConfig"),
}
#: Queues listed in a plan.
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
        bool, typer.Option("--dry-run", help="Print the planned reads and writes, and change nothing.")
    ] = False,
    log_level: options.Log = options.LogLevel.ERROR,
) -> None:
    """Run a pipeline. After a crash or Ctrl-C, running it again continues where it stopped."""
    from libramq.cli.spark import runs

    settings = runs.spark_settings(conf or [])
    chosen = chosen_pipeline(name, config, namesrv=namesrv, access=access.environment_properties())
    plan = chosen.plan()  # Report errors before a Java machine starts.
    if dry_run:
        _show(plan)
        return
    if plan.nothing_to_do:
        print(f"{plan.nothing_to_do}; Spark was not started")
        return
    with (
        runs.ProgressDisplay(name, after_stop="run it again and it continues") as on_progress,
        runs.spark_session(
            f"libra pipeline {name}", master=master, log_level=log_level, settings=settings, archive=archive
        ) as spark,
    ):
        outcome = chosen.run(spark, on_progress)
    print(outcome.sentence)
    for file in outcome.files:
        print(file)


class Pipeline(Protocol):
    """A pipeline that can be planned and run."""

    name: str

    def plan(self) -> "Plan": ...
    def run(self, spark: "SparkSession", on_progress: "OnProgress") -> "RunResult": ...


def chosen_pipeline(
    name: str, config_file: Path | None, *, namesrv: str | None, access: Mapping[str, str]
) -> Pipeline:
    """Return a pipeline with its configuration; ConfigError names the error and the alternatives.

    namesrv: takes precedence over the file's unless None. access: the default if the file sets none.
    """
    if name not in PIPELINES:
        from libramq.spark.options import hint_at

        raise ConfigError(f"no pipeline {name}; {hint_at(name, PIPELINES)}")
    class_name, config_name = PIPELINES[name]
    with needs_extra(f"pipeline {name}", "spark,java"):
        module = import_module(f"libramq.spark.pipeline.{name}")
    from libramq.spark.pipeline.config import read_config

    config = read_config(
        getattr(module, config_name), config_file, defaults={"access": access}, namesrv=namesrv
    )
    made: Pipeline = getattr(module, class_name)(config)
    return made


def _show(plan: "Plan") -> None:
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
