"""The failure of a replica, apart from the replica: a broker without replicas starts without it."""


class ReplicaFailed(Exception):
    """The replica's disk failed, so that it must not go on: it begins anew on its folder.

    Args:
        message: says why.
        may_pass: whether only space was missing, so that the process itself begins anew. Otherwise
            it ends.
    """

    def __init__(self, message: str | None, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass
