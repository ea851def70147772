"""Kafka's protocol: its requests as calls of a broker's services, in files numbered by API key.

A module of requests is numbered by the lowest key of its APIs, and begins with their names and keys; only
ApiVersions (18) is in `translator`. The changes of each version are described in `wire/kafka/apis`.
"""
