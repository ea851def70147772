"""Recovery: opens a store after it was closed, killed or damaged."""
