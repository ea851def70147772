"""The parts of `bench/torture`: a broker to kill, load, and a ledger of acknowledgements."""
