"""HTTP at the server: nsqd's endpoints, RPC by POST, and the log for readers such as Spark.

May import: `martlet.broker`, `server`, aiohttp. Start with `server`, then `nsq_api`.
"""
