"""Producers: from a message to the broker's acknowledgement: queue, batch, retries, transactions, replies."""
