"""Pipelines: whole Spark programs that people run as they are, with `libra pipeline run NAME`.

A pipeline is a configuration, a plan that touches nothing, and a run that can be killed at any moment and
begun again. What is printed is decided by whoever runs it.
"""
