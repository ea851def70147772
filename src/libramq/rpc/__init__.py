"""Typed calls for clients; the endpoint, its outcomes and the table of requests for servers."""
