"""Authorization: which principal may do which operation on which resource."""
