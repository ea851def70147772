"""Replication: copies the log from a master to its slaves by Apache's HA protocol, and tracks the slaves in
sync and the replies that wait for them.
"""
