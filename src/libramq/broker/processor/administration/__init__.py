"""Requests of operators and their tools: topics, options, statistics, cleaning, users."""
