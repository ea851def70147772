"""Transactions: messages that consumers see only once their producer has committed them."""
