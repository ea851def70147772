"""The state that a broker keeps in files: its log, tables, timers and pops; and when it is written."""
