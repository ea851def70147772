"""The features of a broker: each puts its parts together; `broker.py` lists them."""
