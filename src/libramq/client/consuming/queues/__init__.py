"""The queues that a consumer owns: their states, their messages in progress, the lease that covers all."""
