"""Kafka's wire: frames, messages by version, record batches.

Sources: kafka.apache.org/protocol and the message schemas of Apache Kafka,
clients/src/main/resources/common/message.
"""
