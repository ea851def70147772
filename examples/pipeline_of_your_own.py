"""A custom pipeline: copy a topic's sales into a Parquet table, each exactly once, even after interruptions.

    libra up                                       # in another terminal
    python examples/pipeline_of_your_own.py        # as often as you like

The table is `sales` in this directory: `SELECT * FROM 'sales/**/*.parquet'` in DuckDB. tests/spark/pipeline/
test_batches.py runs this program against a broker from libramq.testing.
"""

from pathlib import Path

from libramq.spark import Batch, ParquetTable, from_message, plan_batches, read_batches, session

OPTIONS = {"subscribe": "Sales", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100000"}


def keep_sales(spark, directory: Path, **options: str) -> int:
    table = ParquetTable(directory / "sales")

    def write(messages, batch: Batch) -> None:
        sale = from_message("body", "json", "shop STRING, cents INT")
        rows = messages.select("queueId", "offset", sale.alias("sale")).where("sale.corrupt IS NULL")
        table.write_once(rows.select("queueId", "offset", "sale.value.*"), batch)

    return read_batches(spark, {**OPTIONS, **options}, directory / "sales.checkpoint", write)


if __name__ == "__main__":
    new = sum(part.row_count for part in plan_batches(OPTIONS, "sales.checkpoint"))
    print(f"{new} new messages")
    if new:  # Starting Spark takes seconds, so skip it if there is nothing to read.
        print(f"{keep_sales(session(), Path.cwd())} messages read")
