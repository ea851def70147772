"""The features of a broker, a module for each room: they put its parts together; `broker.py` lists them."""
