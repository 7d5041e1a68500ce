"""``martlet demo``: the main job on real data, with a kill -9 in the middle."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run the demonstration; the result is the exit code of the process."""
    parser = argparse.ArgumentParser(prog="martlet demo", description=__doc__)
    parser.parse_args(argv)
    print("martlet demo: being written", file=sys.stderr)
    return 1
