"""Simple consumers: messages that are popped, and acknowledged one by one."""
