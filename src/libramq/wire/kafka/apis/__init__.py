"""Kafka's requests and answers, by kind."""
