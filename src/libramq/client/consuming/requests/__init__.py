"""Requests: what a consumer asks brokers, and what brokers ask it."""
