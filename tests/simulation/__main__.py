"""Run seeds of the simulation: `./run simulate --seeds=1000`, or one again: `--seed=17`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.cluster import Cluster


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="./run simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run one seed, and print what happens in it")
    options = parser.parse_args()
    if options.seed is not None:
        cluster = Cluster(options.seed, trace=print)
        cluster.run()
        print(cluster)
        return 0
    began = time.monotonic()
    failed = []
    elections = confirmations = changes = followed = 0
    for seed in range(options.first, options.first + options.seeds):
        cluster = Cluster(seed)
        try:
            cluster.run()
        except Exception:
            failed.append(seed)
            print(f"seed {seed} fails; see ./run simulate --seed={seed}", flush=True)
            traceback.print_exc()
        oracle = cluster.oracle
        elections += oracle.elections
        confirmations += oracle.confirmations
        changes += oracle.set_changes
        followed += oracle.followed_count
    per_hour = round(3600 * options.seeds / (time.monotonic() - began))
    print(
        f"{options.seeds} seeds, {len(failed)} failed {failed[:20]}; {elections} elections,"
        f" {confirmations} confirmations, {changes} changes of the set, {followed} steps of"
        f" standbys; {per_hour} seeds an hour"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
