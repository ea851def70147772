"""Other protocols than RocketMQ's: translators between their wire and the broker's services."""
