"""Offsets: what is done, and what brokers or the local store have of it."""
