"""Topics as Arrow record batches, without Spark: what `martlet.spark` and `martlet.arrow` read by.

May import: `martlet.client`, `martlet.log`, `martlet.broker`'s formats. Start with `split`, which
plans tasks; `task` reads one, and `decode` makes Arrow columns of log records.
"""
