"""What a broker keeps in files: its log, tables, levels, timers and pops; and when they are written."""
