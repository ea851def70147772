"""Classic groups: Kafka's older group protocol, in which a member assigns and the coordinator keeps order, as
a state machine.

A deterministic state machine without bytes, sockets or clocks: `ClassicGroup` takes requests and times, and
returns answers. Facts: Kafka's GroupCoordinator, KIP-345 (static members), KIP-394 (member ids), KIP-814.
"""
