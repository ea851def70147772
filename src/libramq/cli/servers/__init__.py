"""The server commands: name server, broker, and both at once."""
