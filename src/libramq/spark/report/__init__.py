"""Reports: pages of plots and tables, each one HTML file that needs nothing else."""
