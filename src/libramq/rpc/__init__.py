"""Typed calls and the endpoint that serves them."""
