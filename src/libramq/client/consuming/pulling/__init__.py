"""Pulling: the requests for messages, and how many may wait."""
