"""Replication: copies a master's commit log to its slaves, byte by byte, by Apache's HA protocol."""
