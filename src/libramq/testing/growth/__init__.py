"""Growth: the sizes of a simulated cluster's tables, before and after a long time of joins and leaves."""
