"""Pipelines: complete Spark programs, run with `libra pipeline run NAME`, and the tables they write.

A pipeline has a configuration, a plan (a dry run), and a run that can be killed at any moment and started
again. The caller does the printing.
"""
