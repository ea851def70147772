"""The commands that run Spark: pipelines and the laboratory."""
