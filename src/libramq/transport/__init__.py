"""The sockets: servers and outgoing connections, their limits, timeouts and TLS; they do not interpret the
bytes.
"""
