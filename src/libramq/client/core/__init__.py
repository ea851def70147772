"""The client as a pure core: events and time in, effects out. It uses no socket, clock or thread."""
