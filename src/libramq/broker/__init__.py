"""The broker: stores messages and serves them to consumers; request processors over plain tables."""
