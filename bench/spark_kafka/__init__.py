"""What `bench/spark --kafka` compares with: Apache Kafka's server, and Spark's source for it."""
