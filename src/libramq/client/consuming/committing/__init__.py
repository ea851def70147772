"""A consumer's offsets: which are done, which are stored at brokers or locally, which are committed next."""
