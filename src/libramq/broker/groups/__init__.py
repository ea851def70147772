"""Consumer groups at a broker: their members, coordination, assignment, openings and commits."""
