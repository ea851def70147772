"""Requests between brokers: peers, masters and slaves."""
