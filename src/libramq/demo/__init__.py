"""The demonstration: real flights through name server, broker, a consumer group and Spark."""
