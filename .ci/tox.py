"""Runs tox from a virtual environment inside the clone, which it makes at first use.

    python3 .ci/tox.py -e demo

Needs nothing but Python 3.11 or later with venv; all arguments go to tox.
"""

import os
import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv"
BIN = HOME / ("Scripts" if os.name == "nt" else "bin")
TOX = BIN / ("tox.exe" if os.name == "nt" else "tox")
REQUIREMENT = "tox>=4.22,<5"


def main():
    """Make the environment if need be, then run tox in the clone."""
    if sys.version_info < (3, 11):
        sys.exit(
            f"hookbus needs Python 3.11 or later, and this is {sys.version.split()[0]}"
        )
    if not TOX.exists():
        print(f"making {HOME}", file=sys.stderr)
        venv.create(HOME, clear=True, with_pip=True)
        pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", REQUIREMENT]
        subprocess.run([*pip, "--disable-pip-version-check"], check=True)
    sys.exit(subprocess.call([str(TOX), *sys.argv[1:]], cwd=ROOT))


if __name__ == "__main__":
    main()
