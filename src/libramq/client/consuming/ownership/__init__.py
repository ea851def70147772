"""The queues that a consumer owns, from assigned to released or lost."""
