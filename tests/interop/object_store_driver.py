"""The driver of tests.interop.test_object_stores: several `ingest` at once in one Spark session.

Each starts when a line arrives on standard input. While one is held in a commit, others may not get far:
delta-rs blocks all of Python, and Arrow opens no other store.
"""

import ast
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from libramq.spark import session
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from tests.spark.conftest import QUICK


def main(configs: list[dict[str, Any]]) -> None:
    spark = session("object stores", settings=QUICK)
    with ThreadPoolExecutor(len(configs)) as threads:
        results = []
        for each in configs:
            sys.stdin.readline()
            results.append(threads.submit(Ingest(IngestConfig(**each)).run, spark, lambda _: None))
        for result in results:
            print(result.result().sentence, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(ast.literal_eval(sys.argv[1]))
