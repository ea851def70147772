"""Ownership: the life of a queue from its assignment to its release or loss: locks, claims, first offsets,
hand-over.
"""
