"""The admin commands: `libra admin NAME`, under mqadmin's names and options."""
