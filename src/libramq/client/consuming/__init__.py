"""Consumers that own or pop queues: from a subscription to handled and committed messages;
`push_consumer_core.py` puts the parts together.
"""
