"""Installs for tox: setuptools first, and then all packages with that one.

pip builds each package in an environment that it makes for it. That takes most of the time
where tens of plugins are installed for editing, which all need no more than setuptools.
"""

import subprocess
import sys

PIP = [sys.executable, "-I", "-m", "pip", "install"]
BUILDS = "setuptools>=77"


def main(arguments):
    """Install what the arguments of ``pip install`` say; return its exit code."""
    if subprocess.call([*PIP, "--quiet", BUILDS]):
        return 1
    if not subprocess.call([*PIP, "--no-build-isolation", *arguments]):
        return 0
    # One of them may have no wheel for this Python, and be built by something else.
    return subprocess.call([*PIP, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
