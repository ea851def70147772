"""Reading `format("rocketmq")`: planning which messages a query reads, and the tasks that read them."""
