"""Typed calls for the asking side; the endpoint, its outcomes and the table of requests for the answering
side.
"""
