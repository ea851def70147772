"""The registry of pipelines: which names `libra pipeline run` knows, and the class of each."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from libramq.errors import ConfigError, needs_extra
from libramq.spark.pipeline.config import read_config
from libramq.spark.pipeline.plan import OnProgress, Plan, RunResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Module, class and configuration; imported on use.
PIPELINES: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "ingest": ("ingest.ingest", "Ingest", "IngestConfig"),
        "rebalance_report": ("rebalances.report", "RebalanceReport", "RebalanceReportConfig"),
        "lag_report": ("lag.report", "LagReport", "LagReportConfig"),
    }
)


class Pipeline(Protocol):
    """A pipeline that can be planned and run."""

    name: str

    def plan(self) -> Plan: ...
    def run(self, spark: "SparkSession", on_progress: OnProgress) -> RunResult: ...


def pipeline(
    name: str, config_file: Path | None, *, namesrv: str | None, access: Mapping[str, str]
) -> Pipeline:
    """Return a pipeline with its configuration; ConfigError has the error and the alternatives.

    namesrv: takes precedence over the file's unless None. access: of a file that has none.
    """
    if name not in PIPELINES:
        near = difflib.get_close_matches(name, PIPELINES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(PIPELINES)}"
        raise ConfigError(f"no pipeline {name}; {hint}")
    module_name, class_name, config_name = PIPELINES[name]
    with needs_extra(f"pipeline {name}", "spark,java"):
        module = import_module(f"libramq.spark.pipeline.{module_name}")
    made: Pipeline = getattr(module, class_name)(
        read_config(getattr(module, config_name), config_file, defaults={"access": access}, namesrv=namesrv)
    )
    return made
