"""Formats of the batches that are stored as one record."""
