"""The main job on real data: a year of flights, consumers, Spark, and a broker that is killed."""
