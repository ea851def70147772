"""Codecs of protocols other than RocketMQ's own: bytes and values, without sockets, time or services."""
