"""Consumers: from a subscription to handled and committed messages."""
