"""The parts of one coordinated group: members, queues, publication, saved state."""
