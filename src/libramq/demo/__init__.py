"""The demonstration: real flight data through a name server, a broker, a consumer group and Spark."""
