"""Deduplication: each unique id once, which makes exactly once of what a sink wrote at least once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deduplicated(messages: "DataFrame", within: str = "1 hour") -> "DataFrame":
    """Rows of our source without those whose topic and msgId came before.

    within: of a stream, how far the store times of two such rows may be apart, and so how much Spark keeps in
    mind; a query that was down for longer before it wrote its batch again needs more. A batch has no bound.
    """
    columns = ["topic", "msgId"]
    if messages.isStreaming:
        return messages.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(columns)
    return messages.dropDuplicates(columns)
