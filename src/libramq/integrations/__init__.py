"""Integrations: LibraMQ in common Python frameworks.

    asgi            clients that start and stop with a web application
    faststream      a broker for FastStream's applications
    opentelemetry   traces that follow messages
    pytest_plugin   fixtures with real brokers

Each is imported by name and needs only its framework.
"""
