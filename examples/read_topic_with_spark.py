"""Read a topic with Spark, sum its sales by shop, and write the sums back as messages.

    libra up                    # in another terminal
    python examples/read_topic_with_spark.py

It prints:

    +-------+-----+
    |   shop|cents|
    +-------+-----+
    |Harbour|14850|
    | Market|14950|
    |Station|15050|
    +-------+-----+
"""

import json

from pyspark.sql import functions as f

from libramq import Message
from libramq.spark import from_message, session
from libramq.sync import Producer

with Producer() as producer:  # Send something to read.
    for number in range(300):
        sale = {"shop": ("Harbour", "Market", "Station")[number % 3], "cents": number}
        producer.send_nowait(Message("Sales", json.dumps(sale).encode()))
    producer.flush()

spark = session()  # A session sized for a laptop; any other works as well.
sales = (
    spark.read.format("rocketmq")
    .option("subscribe", "Sales")
    .load()
    .select(from_message("body", "json", "shop STRING, cents INT").alias("sale"))
    .where("sale.corrupt IS NULL")
    .select("sale.value.*")
)
earned = sales.groupBy("shop").agg(f.sum("cents").alias("cents")).orderBy("shop")
earned.show()

results = earned.select(f.col("shop").alias("key"), f.to_json(f.struct("shop", "cents")).alias("body"))
results.write.format("rocketmq").option("topic", "Earned").mode("append").save()
