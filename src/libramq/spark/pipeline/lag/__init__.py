"""The lag report: samples of groups' offsets as tables and a page."""
