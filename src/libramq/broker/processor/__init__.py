"""Request processors of the broker: one family of requests a module."""
