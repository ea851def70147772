"""Scenarios: what happens to a simulated cluster, and when."""
