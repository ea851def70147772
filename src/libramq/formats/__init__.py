"""Apache's documents: fastjson's dialect, typed documents in it, the tables in brokers' files."""
