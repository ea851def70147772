"""A pipeline of your own: the sales of a topic as a Parquet table, each once, however often it is stopped.

    libra up                                       # in another terminal
    python examples/pipeline_of_your_own.py        # as often as you like

The table is `sales` in this directory: `SELECT * FROM 'sales/**/*.parquet'` in DuckDB. tests/spark/pipeline/
test_batches.py runs it with a broker of libramq.testing.
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
    print(f"{new} messages are new")
    if new:  # Spark takes seconds to start.
        print(f"{keep_sales(session(), Path.cwd())} messages read")
