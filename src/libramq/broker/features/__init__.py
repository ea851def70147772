"""The features of a broker, a module for each room: they put its services together and decide nothing;
`broker.py` lists them.
"""
