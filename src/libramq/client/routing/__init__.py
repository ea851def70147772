"""Routes: where topics live, from name servers, and what producers and consumers make of it."""
