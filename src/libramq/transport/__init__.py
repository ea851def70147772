"""The sockets of our own protocols: asyncio and blocking shells that do not know what the bytes mean."""
