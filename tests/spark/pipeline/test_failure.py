"""Failures of Spark in one line."""

import pytest
from py4j.protocol import Py4JError

from libramq.spark.pipeline.failure import PipelineFailed, failures_in_one_line


def test_a_failed_call_to_java_is_named_by_its_cause():
    """Py4J's first line names a method by a number that says nothing."""
    text = (
        "An error occurred while calling o69.start.\n: java.lang.IllegalStateException: two queries\n\tat X"
    )
    with pytest.raises(PipelineFailed) as caught, failures_in_one_line("ingest"):
        raise Py4JError(text)
    said = "ingest ended early: java.lang.IllegalStateException: two queries; run it again and it continues"
    assert str(caught.value) == said
