"""The state that a broker keeps in files beside the log: tables, schedules, timers and POP's; when each is
written and how it is read at a start.
"""
