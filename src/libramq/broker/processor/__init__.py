"""Request processors: RocketMQ's requests as calls of the broker's services, one family a module."""
