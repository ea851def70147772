"""Pipelines: complete Spark programs, run with `libra pipeline run NAME`, and the tables that they write.

A pipeline is a configuration, a plan that changes nothing, and a run that can be killed at any moment and
started again. The caller decides what is printed.
"""
