"""Spark failures in one line."""

import pytest
from py4j.protocol import Py4JError

from libramq.spark.pipeline.plan import PipelineFailed, failures_in_one_line


def test_a_failed_call_to_java_is_named_by_its_cause():
    """Py4J's first line names a method by a meaningless number."""
    text = (
        "An error occurred while calling o69.start.\n: java.lang.IllegalStateException: two queries\n\tat X"
    )
    with pytest.raises(PipelineFailed) as caught, failures_in_one_line("ingest"):
        raise Py4JError(text)
    said = "ingest ended early: java.lang.IllegalStateException: two queries; run it again and it continues"
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("builtins.OSError: [Errno 28] No space left", "OSError: [Errno 28] No space left"),
        ("py4j.Py4JJavaError: An error occurred while calling o5.parquet\n: java.E: n", "java.E: n"),
        (
            "Py4JJavaError: An error occurred while calling o5.x.\n"
            ": E: failed.\n\tat X\nCaused by: F: m\n\tat Y\nCaused by: IO: full",
            "E: failed: IO: full",
        ),
        (
            "OSError: Generic S3 error\n\x1b[31m↳\x1b[0m Error performing PUT a\n  \x1b[31m↳\x1b[0m refused",
            "OSError: Generic S3 error: Error performing PUT a: refused",
        ),
        ("libramq.errors.ConfigError: the table t is another", "the table t is another"),
    ],
)
def test_a_failed_function_of_python_is_named_by_its_last_exception(raised: str, said: str):
    """Spark passes on the driver's traceback, which contains a worker's, after three more sentences."""
    text = f"""[STREAM_FAILED] Query [id = 1] terminated with exception: [FOREACH_BATCH] An error occurred.
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "batches.py", line 106, in write_numbered
    write(messages)
    ^^^^^
pyspark.errors.exceptions.captured.PythonException:
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "iceberg_table.py", line 1, in write
{raised}
 SQLSTATE: 39000
=== Streaming Query ===
"""
    with pytest.raises(PipelineFailed) as caught, failures_in_one_line("ingest"):
        raise Py4JError(text)
    assert str(caught.value) == f"ingest ended early: {said}; run it again and it continues"
