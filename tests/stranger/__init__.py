"""A stranger's protocol: the proof that a protocol can be added, and how."""
