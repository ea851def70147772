"""Which messages of a topic a consumer wants."""
