"""Classic groups: Kafka's older group protocol, in which a member assigns and the coordinator synchronizes
the members.

A deterministic state machine without bytes, sockets or clocks: `ClassicGroup` takes requests and times, and
returns answers. Sources: Kafka's GroupCoordinator, KIP-345 (static members), KIP-394 (member ids), KIP-814
(leaders that skip the assignment).
"""
