"""What `bench/soak` is made of: programs under load, a tally of what they handled, and measures."""
