"""The ingest pipeline: a topic's messages in a table, each once."""
