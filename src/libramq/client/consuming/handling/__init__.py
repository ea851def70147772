"""Handling: passes messages to the user's functions, and acts on their results: done, retried, dead letter,
abandoned.
"""
