"""The comparison of `bench/spark --kafka`: Apache Kafka's server and Spark's Kafka source."""
