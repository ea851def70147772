"""What `bench/torture` is made of: a broker that is killed; load; a ledger of what was acknowledged."""
