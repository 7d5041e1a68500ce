"""`martlet demo`: a year of flights through a broker that is killed, to consumers and to Spark.

May import: `martlet.client`, `martlet.pipeline`, `martlet.spark`, `martlet.testing`. Start with
`job`.
"""
