"""Kafka's view of the cluster: nodes, topics and offsets at all brokers, and groups' next coordinators."""
