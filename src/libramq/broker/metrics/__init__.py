"""Metrics: what a broker counts, for Prometheus and for mqadmin."""
