"""The failure of a replica, apart from the replica: a broker without replicas starts without it."""


class ReplicaFailed(Exception):
    """The replica's disk failed, so that it must not go on; the process ends, and starts anew."""
