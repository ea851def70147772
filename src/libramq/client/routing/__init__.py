"""Routes: the brokers of topics, from name servers, and the queues that producers and consumers use."""
