"""The broker: what decides about requests is in `messages`, `groups`, `pop` and `transactions`; `processor`
translates RocketMQ's requests into their calls, `cluster` speaks to other servers.
"""
