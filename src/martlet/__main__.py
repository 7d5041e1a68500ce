"""``python -m martlet``: the commands, where ``martlet`` is not on the path."""

import sys

from martlet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
