"""The queues that a consumer has: their states, their messages at work, the lease that covers all."""
