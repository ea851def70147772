"""The catalog of a broker: topics and consumer groups with their configuration, the limits on both, and how
their tables are recorded.
"""
