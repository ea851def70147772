"""Reading `format("rocketmq")`: what a query covers, and the tasks that read it."""
