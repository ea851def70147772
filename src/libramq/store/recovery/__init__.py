"""Opening: what a store is after it was closed, killed or damaged."""
