"""The coordinator of groups whose assignments are numbered by epochs, as a state machine; begin with
`coordinator.py`, then `transitions.py`.
"""
