"""Deduplication: each unique id once, which turns a sink's at-least-once into exactly-once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deduplicated(messages: "DataFrame", within: str = "1 hour") -> "DataFrame":
    """Drop rows of our source whose topic and msgId occurred before.

    within: for a stream, how far apart the store times of two such rows may be, and so how much state Spark
    keeps; a query that was down for longer before it wrote its batch again needs more. A batch has no limit.
    """
    columns = ["topic", "msgId"]
    if messages.isStreaming:
        return messages.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(columns)
    return messages.dropDuplicates(columns)
