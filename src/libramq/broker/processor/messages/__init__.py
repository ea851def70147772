"""Requests about messages: sent, pulled, popped, acknowledged, looked up; each as a call of
`broker.messages`, `broker.pop` or `broker.transactions`.
"""
