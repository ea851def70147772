"""Synthetic histories, a kind a module; each is the same for the same seed."""
