"""Apache's documents: fastjson's dialect, typed documents in it, the tables that brokers keep in files."""
