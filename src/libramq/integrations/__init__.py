"""Integrations: LibraMQ in the frameworks that Python programs are already built with.

    asgi            clients that start and stop with a web application
    faststream      a broker for FastStream's applications
    opentelemetry   traces that follow messages
    pytest_plugin   fixtures with real brokers

Each is imported by name, and needs no package but its framework.
"""
