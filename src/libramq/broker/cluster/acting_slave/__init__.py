"""The acting slave: a slave that delivers what waited at its lost master, by sending it to other masters."""
