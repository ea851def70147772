"""Requests of operators: topics, options, statistics, cleaning."""
