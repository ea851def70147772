"""The runtime: what performs the effects of an engine, over a network, timers and threads that are real or
simulated.
"""
