"""What tests of clusters need: a virtual clock, a network and disks that fail, and a simulator of all of it.

    seed ─► scenario ─► cluster of real brokers, name server and clients ─► history ─► invariants ─► report

One thread, one seed, no real time: `Simulation(seed).run()`; `libra simulate` runs many. The decisions are
those of the real modules, only their shells are others.
"""
