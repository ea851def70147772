"""Copies of a store."""
