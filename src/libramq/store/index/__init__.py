"""Messages by their keys."""
