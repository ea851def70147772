"""POP's services: popping, acknowledging, and what becomes visible again."""
