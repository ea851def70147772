"""The runtime: performs an engine's effects, over a real or simulated network, timers and threads."""
