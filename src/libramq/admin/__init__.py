"""Administration: typed questions to brokers and name servers, over the asyncio client."""
