"""The server commands `libra up`, `libra nameserver` and `libra broker`: ports, directories, child processes,
secrets.
"""
