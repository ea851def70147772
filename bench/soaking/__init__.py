"""The parts of `bench/soak`: programs under load, a tally of handled messages, and measures."""
