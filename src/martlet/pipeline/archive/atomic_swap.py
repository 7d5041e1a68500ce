"""The exchange: two folders of one file system change their names, in one step.

Linux does it (``renameat2`` with RENAME_EXCHANGE) on the usual file systems; Python has no call for
it.  Nobody who opens either path finds nothing there, nor a mixture.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_THERE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EPERM})
"""What file systems answer that cannot do it."""


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders; False where the system or the file system cannot.

    Raises:
        OSError: it can, but not these, as one of them does not exist.
    """
    call = _renameat2()
    if call is None:
        return False
    done = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    call.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )
    call.restype = ctypes.c_int
    return call
