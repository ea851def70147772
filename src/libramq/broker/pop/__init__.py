"""POP's services at a broker: popping, acknowledging, and reviving. Their values are in `pop`."""
