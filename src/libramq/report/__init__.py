"""Reports: plots, tables and other parts of pages, each page one self-contained HTML file."""
