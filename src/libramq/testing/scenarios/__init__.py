"""Scenarios: what is done to a simulated cluster, when, and how likely."""
