"""Produce and consume, alone and in a group, with kafka-python; a separate process, as its import warns."""

import sys
import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

TIMEOUT_S = 60


def main(address: str) -> None:
    """Produce twenty records to two partitions, and consume them."""
    producer = KafkaProducer(bootstrap_servers=address, compression_type="gzip")
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
    assert in_a_group(address) == values
    assert in_a_group(address) == set(), "it has committed"
    admin = KafkaAdminClient(bootstrap_servers=address)
    assert admin.delete_group_offsets("readers", [TopicPartition("orders", 0)])
    assert {each.partition for each in admin.list_group_offsets("readers")["readers"]} == {1}
    admin.close()
    print(len(values), "records")


def in_a_group(address: str) -> set[bytes]:
    """Consume as the only member of a group, and commit.

    Return the records up to the ends of the partitions.
    """
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=address,
        group_id="readers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    values: set[bytes] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment() or any(
        consumer.position(each) < end for each, end in consumer.end_offsets(consumer.assignment()).items()
    ):
        assert time.monotonic() < deadline, "the ends were not reached"
        for records in consumer.poll(timeout_ms=200).values():
            values |= {record.value for record in records}
    consumer.commit()
    consumer.close()
    return values


if __name__ == "__main__":
    main(sys.argv[1])
