"""Kafka's requests and answers, by kind: fields and the versions that have them."""
