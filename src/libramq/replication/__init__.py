"""Replication: the log from a master to its slaves, by Apache's HA protocol; who is in sync, and what waits
for that.
"""
