"""The queues that a consumer has: their states, their messages at work, and the lease that covers them."""
