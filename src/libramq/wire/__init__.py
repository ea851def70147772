"""Codecs of other protocols than RocketMQ's own: bytes and values, without sockets, time or services."""
