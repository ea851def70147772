"""Consumer groups: who is a member, who locks which queue, and what happens when that changes."""
