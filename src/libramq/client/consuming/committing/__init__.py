"""A consumer's offsets: which are done, which brokers or the local store have, and what is committed next."""
