"""Requests of and about groups: clients, members, offsets, locks, assignments."""
