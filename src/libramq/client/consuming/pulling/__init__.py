"""Pulling: the requests for messages, how many messages may wait, and the messages in the answers."""
