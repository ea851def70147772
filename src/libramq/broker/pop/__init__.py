"""POP's services at a broker: popping, acknowledging, and what becomes visible again; the values are in
`pop`.
"""
