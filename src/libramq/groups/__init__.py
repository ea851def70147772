"""Consumer groups as rules without sockets or files: members, queue locks, assignments, rebalances and their
history. Used by `broker.groups`.
"""
