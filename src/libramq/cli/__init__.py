"""The `libra` command: composition roots, signals, and tools for people.

Modules import what they need when they run, so that `libra --help` is quick.
"""
