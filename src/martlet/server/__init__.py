"""The server: a broker core on sockets, disks and a clock.

May import: `martlet.broker`, `martlet.log`, `martlet.protocol`, `martlet.layer`. Start with
`server`, which starts and stops everything; `nsq` speaks NSQ's protocol, `http` HTTP, and `rpc`
answers the calls of Martlet's own clients.
"""
