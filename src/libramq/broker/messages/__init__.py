"""Messages at a broker, for every protocol: sending, durability, reading, held reads, and late or repeated
delivery.
"""
