"""`./run demo`: a year of flights through a broker that is killed, to consumers and to Spark.

Start with `main`, then `job`.
"""
