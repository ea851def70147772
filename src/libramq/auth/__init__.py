"""Authorisation, for every protocol: which principal may do which operation on which resource; users,
policies, audit.
"""
