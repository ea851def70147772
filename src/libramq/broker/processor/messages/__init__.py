"""Requests about messages: sent, pulled, popped, acknowledged, looked up."""
