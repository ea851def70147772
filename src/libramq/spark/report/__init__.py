"""Reports: pages of plots and tables, each one self-contained HTML file."""
