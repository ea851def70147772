"""Replication: the commit log of a master, byte by byte on its slaves, by Apache's HA protocol."""
