"""Reading an open store, and a store directory without its broker."""
