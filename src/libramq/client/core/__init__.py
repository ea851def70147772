"""The client as a pure core: events and time in, effects out. It knows no socket, clock or thread."""
