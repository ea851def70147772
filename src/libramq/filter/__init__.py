"""Filters: which messages of a topic a consumer receives, by tags or by SQL92."""
