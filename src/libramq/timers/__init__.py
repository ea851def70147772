"""Timer messages: messages that are delivered at a time, in Apache's timer wheel and timer log."""
