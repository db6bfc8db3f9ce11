"""Solves and installs conda packages with py-rattler, in a separate process.

   python -m pybackend_tools.pack.conda_worker < order.json > events

py-rattler's threads still run at interpreter shutdown and occasionally crash it with SIGSEGV (seen with 0.28). This
process reports its result first and then exits without a regular shutdown. It writes one JSON document per line:
``solved``, ``progress``, ``done``, or ``error`` with the step and the kind of exception.
"""

import asyncio
import datetime as dt
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO


class _Reporter:
    def __init__(self, say: Any) -> None:
        self._say = say
        self._total = 0
        self._done = 0

    def on_transaction_start(self, total_operations: int) -> None:
        self._total = total_operations

    def on_transaction_operation_complete(self, _operation: int) -> None:
        self._done += 1
        self._say({"event": "progress", "done": self._done, "total": self._total})

    def __getattr__(self, name: str) -> Any:
        # The protocol has a dozen more methods, some of which must return a token.
        if name.startswith("on_"):
            return lambda *_: 0
        raise AttributeError(name)


async def _solve(order: dict[str, Any]) -> list[Any]:
    from rattler import Gateway, MatchSpec, VirtualPackage, solve

    wanted, optional = order["specs"], order["optional_specs"]
    gateway = Gateway()
    virtual = VirtualPackage.detect()

    async def attempt(specs: list[str]) -> list[Any]:
        return await solve(
            order["channels"],
            # Not strict: conda users write `numpy=1.26` and `python>=3.10,<3.13`.
            [MatchSpec(spec) for spec in specs],
            gateway=gateway,
            virtual_packages=virtual,
            timeout=dt.timedelta(seconds=order["timeout_s"]),
        )

    records = await attempt(wanted)
    names = {record.name.normalized for record in records}
    for spec in optional:
        if spec not in names:
            try:
                records = await attempt([*wanted, spec, *(f"{r.name.normalized}=={r.version}" for r in records)])
            except Exception:  # noqa: BLE001, S112  msgpack is unavailable: the environment works without it
                continue
    return records


def _locked(documents: list[dict[str, Any]]) -> list[Any]:
    from rattler import PackageRecord, RepoDataRecord

    records = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "index.json")
        for document in documents:
            path.write_text(json.dumps(document))
            package = PackageRecord.from_index_json(
                path, sha256=document.get("sha256"), md5=document.get("md5"), size=document.get("size")
            )
            records.append(RepoDataRecord(package, document["fn"], document["url"], document["channel"]))
    return records


async def _work(order: dict[str, Any], say: Any) -> None:
    step = "solve"
    try:
        records = _locked(order["locked"]) if order["locked"] is not None else await _solve(order)
        say({"event": "solved", "records": [json.loads(record.to_json()) for record in records]})
        if order["prefix"] is not None:
            from rattler import install

            step = "install"
            await install(records, target_prefix=order["prefix"], show_progress=False, reporter=_Reporter(say))
        say({"event": "done"})
    except Exception as error:  # noqa: BLE001  the error is this process's result
        say({"event": "error", "step": step, "kind": type(error).__name__, "message": str(error)})


def main() -> None:
    """Read the order, execute it and report the result."""
    # Output printed by libraries must not mix with the events.
    output: TextIO = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    order = json.load(sys.stdin)

    def say(event: dict[str, Any]) -> None:
        output.write(json.dumps(event) + "\n")
        output.flush()

    try:
        asyncio.run(_work(order, say))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
