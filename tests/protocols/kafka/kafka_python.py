"""Produce and consume with kafka-python, in a process of its own: its import warns."""

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TIMEOUT_S = 60


def main(address: str) -> None:
    """Produce twenty records to two partitions, and consume them."""
    producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=False, compression_type="gzip")
    futures = [producer.send("orders", b"%d" % number, partition=number % 2) for number in range(20)]
    for number, future in enumerate(futures):
        assert future.get(TIMEOUT_S).offset == number // 2
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000
    )
    consumer.assign([TopicPartition("orders", 0), TopicPartition("orders", 1)])
    values = set()
    for message in consumer:
        values.add(message.value)
        if len(values) == 20:
            break
    consumer.close()
    assert values == {b"%d" % number for number in range(20)}
    print(len(values), "records")


if __name__ == "__main__":
    main(sys.argv[1])
