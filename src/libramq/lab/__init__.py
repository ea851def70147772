"""The laboratory: compares allocation strategies under membership histories, with `libra lab run`.

        history     members' joins and departures over time: synthetic from a seed, or recorded by brokers
        entrant     a strategy and its allocator: a coordinator, or every client by itself
        replay      one history under one entrant, step by step: moves, loads, pauses, duplicates
        laboratory  runs all of them on Spark, one history per partition; writes tables and a page

Importing this package loads no Spark.
"""
