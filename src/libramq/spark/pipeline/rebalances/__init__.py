"""The rebalance report: a cluster's rebalances and what they cost, from events and clients' traces."""
