"""LibraMQ beside Apache RocketMQ: Apache's real programs run against Apache's servers and ours."""
