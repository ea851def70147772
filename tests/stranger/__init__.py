"""A protocol that is added from outside `src/`: the proof that this is possible, and an example."""
