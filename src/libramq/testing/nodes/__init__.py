"""The simulated nodes: real servers and clients, each on a simulated machine."""
