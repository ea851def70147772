"""The coordinator of groups whose members go by epochs; begin with `coordinator.py`."""
