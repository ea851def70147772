"""Batches stored as one record, RocketMQ's and Kafka's: how single messages are found in them."""
