"""Recovery: what a store is after it was closed, killed or damaged, and how it is opened."""
