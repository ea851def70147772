"""LibraMQ beside Apache RocketMQ: their programs, started for real, against their servers and ours."""
