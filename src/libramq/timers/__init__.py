"""Timer messages: messages delivered at a given time, in Apache's timer wheel and timer log."""
