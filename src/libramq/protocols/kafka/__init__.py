"""Kafka's protocol on a broker: each request becomes calls of the services that RocketMQ's requests use."""
