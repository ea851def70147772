"""Messages: appended, made durable, read, delivered late or again."""
