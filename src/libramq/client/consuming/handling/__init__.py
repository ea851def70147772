"""Handling: messages are passed to the user's functions, and what follows from their results."""
