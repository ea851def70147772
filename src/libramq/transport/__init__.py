"""The sockets of our own protocols: asyncio and blocking shells that do not interpret the bytes."""
