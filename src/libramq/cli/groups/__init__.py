"""The groups commands: `libra groups`, its history and its removal of members."""
