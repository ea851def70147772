"""Bodies of messages as columns: JSON, Avro, Protocol Buffers and text."""
