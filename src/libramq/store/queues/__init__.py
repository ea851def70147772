"""Consume queues: the positions of messages in the log, by topic and queue."""
