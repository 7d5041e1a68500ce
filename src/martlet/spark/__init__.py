"""PySpark: a data source that reads topics as tables, and a sink that writes them exactly once.

May import: `martlet.client`, `martlet.reader`. Start with `source`, which Spark finds; `read` and
`write` are its two halves, `java` starts a session without a Java of the user's.
"""
