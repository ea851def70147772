"""Reading: of an open store, and of a directory without its broker."""
