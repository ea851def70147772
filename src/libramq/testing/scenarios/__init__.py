"""Scenarios: the faults and operations on a simulated cluster, their times and their likelihood."""
