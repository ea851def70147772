"""Apache's documents: fastjson's dialect, properties files, and the documents of routes, tables and users."""
