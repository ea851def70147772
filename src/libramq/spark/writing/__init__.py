"""Writing `format("rocketmq")`: rows in, messages out."""
