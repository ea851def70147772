"""Kafka's requests and answers, one API a file."""
