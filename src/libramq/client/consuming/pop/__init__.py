"""Push consumers over POP: messages that are popped, held while handlers run, and settled one by one."""
