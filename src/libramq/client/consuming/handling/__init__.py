"""Handling: messages are passed to the user's functions; what follows from their results: done, retried, dead
letter, abandoned.
"""
