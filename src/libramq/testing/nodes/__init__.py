"""The simulated nodes: the real servers and clients, each on a simulated machine."""
