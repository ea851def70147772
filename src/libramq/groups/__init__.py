"""Consumer groups: their members, queue locks, assignments and rebalances."""
