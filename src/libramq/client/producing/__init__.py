"""Producers: from a message to the broker's acknowledgement."""
