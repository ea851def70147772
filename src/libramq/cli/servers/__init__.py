"""The server commands: `libra up`, `libra nameserver`, `libra broker`: ports, directories, child processes,
secrets.
"""
