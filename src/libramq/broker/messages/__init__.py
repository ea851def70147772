"""Messages at a broker, for every protocol: sent, made durable, read, held for readers, delivered late or
again.
"""
