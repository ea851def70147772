"""Apache's document formats: fastjson's dialect, properties files, and routes, tables and users."""
