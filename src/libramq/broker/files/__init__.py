"""The state that a broker keeps in files beside the log: tables, schedules, timers and POP's state; when each
is written, and how a start reads it.
"""
