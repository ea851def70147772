"""Consumer groups at a broker, for every protocol: heartbeats, coordination, assignment, openings, commits.
The rules that need no broker are in `groups`.
"""
