"""Checks the types that users of hookbus see, with pyright.

    python .ci/check_types.py

All but one in twenty of the names that hookbus exports have a type that every type checker
infers alike, and none is unknown. In ``.ci/typed``, ``good.py`` passes, and each
line that ends in ``# wrong`` in ``bad.py`` has an error. mypy does the latter in a test.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TYPED = Path(__file__).with_name("typed")
LEAST = 0.95


def pyright(*arguments: str) -> dict[str, Any]:
    """Run pyright on copies of the files; it reads no hidden folder. Return its report."""
    command = [sys.executable, "-m", "pyright", "--outputjson", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(TYPED, folder, dirs_exist_ok=True)
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    """Print the counts, and end with 1 if something is missing."""
    report = pyright("--verifytypes", "hookbus", "--ignoreexternal")["typeCompleteness"]
    counts, score = report["exportedSymbolCounts"], report["completenessScore"]
    print(f"hookbus: {score:.1%} of the types of exported names are complete: {counts}")
    fine = score >= LEAST and not counts["withUnknownType"]
    for name in ("good.py", "bad.py"):
        lines = (TYPED / name).read_text("utf-8").splitlines()
        wrong = {place for place, line in enumerate(lines) if line.endswith("# wrong")}
        found = {e["range"]["start"]["line"] for e in pyright(name)["generalDiagnostics"]}
        print(f"{name}: {len(found)} lines with errors, {len(wrong)} expected")
        for place in sorted(found ^ wrong):
            print(f"  {name}:{place + 1}: {lines[place]}")
        fine = fine and found == wrong
    sys.exit(not fine)


if __name__ == "__main__":
    main()
