"""Kafka's protocol: its requests as calls of a broker's services, in files numbered by API key.

A module of requests is numbered by the lowest key of its APIs, and begins with their names and keys; only
ApiVersions (18) is in `translator`. What each version brought is in `wire/kafka/apis`.
"""
