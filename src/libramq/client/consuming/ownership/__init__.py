"""Ownership: what happens to a queue from assigned to released or lost: locks, claims, first offsets, handing
over.
"""
