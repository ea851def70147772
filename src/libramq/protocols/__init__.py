"""Protocols other than RocketMQ's: translators between their wire formats and the broker's services."""
