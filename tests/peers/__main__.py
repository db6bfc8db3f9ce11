"""``python -m tests.peers [PEER ...]``: run clients of other projects against a server."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.peers import kserve_client, model_analyzer, perf_analyzer, schemathesis_run

PEERS = {
    "perf_analyzer": perf_analyzer.main,
    "model_analyzer": model_analyzer.main,
    "kserve": kserve_client.main,
    "schemathesis": schemathesis_run.main,
}


def main() -> int:
    """The exit status: 1 if a client was not served as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.peers", description="Run clients of other projects against a server."
    )
    parser.add_argument("peers", metavar="PEER", nargs="*", help=f"some of {', '.join(PEERS)} (default: all)")
    chosen = parser.parse_args().peers or list(PEERS)
    unknown = set(chosen) - set(PEERS)
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    failed = []
    for name in chosen:
        print(f"--- {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="pybackend-peers-") as folder:
            if not PEERS[name](Path(folder)):
                failed.append(name)
    print(f"FAIL: {', '.join(failed)}" if failed else f"PASS: {', '.join(chosen)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
