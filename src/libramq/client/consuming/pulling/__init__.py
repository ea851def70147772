"""Pulling: the requests for messages, how many messages may wait, and what a pull brought."""
