"""Groups of Kafka's newer protocol (KIP-848), in which the coordinator assigns, as values and plain
functions.

The coordinator assigns, and members move towards the assignment one by one, at their heartbeats.
"""
