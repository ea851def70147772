"""The laboratory: allocation strategies compared under membership histories, with `libra lab run`.

        history     who joins and leaves, and when: synthetic from a seed, or recorded by brokers
        entrant     a strategy, and who computes it: a coordinator, or every client by itself
        replay      one history under one entrant, step by step: moves, loads, pauses, duplicates
        laboratory  all of them on Spark, one history per partition; tables, a page

Importing this package loads no Spark.
"""
