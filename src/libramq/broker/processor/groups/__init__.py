"""Requests about groups: clients, members, offsets, locks, assignments; each as a call of `broker.groups`."""
