"""Consumer groups at a broker, for every protocol: heartbeats, coordination, assignment, openings, commits;
the rules without a broker are in `groups`.
"""
