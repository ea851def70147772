"""The broker: `messages`, `groups`, `pop` and `transactions` decide about requests; `processor` translates
RocketMQ's requests into their calls, and `cluster` communicates with other servers.
"""
