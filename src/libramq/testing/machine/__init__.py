"""The simulated machine: clocks, disk, network and processes."""
