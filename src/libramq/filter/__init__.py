"""Filters: which messages of a topic a consumer receives."""
