"""The coordinator of groups whose assignments are numbered by epochs; begin with `coordinator.py`."""
