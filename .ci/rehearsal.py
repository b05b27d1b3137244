"""Rehearses a release: builds, uploads to an index on this machine, installs from there.

    python .ci/rehearsal.py [--torch] [--built] [FOLDER]

Every distribution is built from the files that git tracks: first the sdist, then the wheel
from the sdist. They are uploaded in two parts, as when an upload fails and is repeated. A
new environment then installs ``hookbus[all]`` from the index, and everything else from
where pip usually finds it. There, the demo runs, and with ``--torch`` also the first script
of the README. All is written to FOLDER, by default a temporary one. With ``--built``, the
files are those that an earlier rehearsal has built there.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """Run a command that must succeed; return what it prints."""
    environ = {**os.environ, "NO_PROXY": "127.0.0.1", **variables}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        shown = shlex.join(map(str, command))
        sys.exit(f"{shown}\n{done.stdout}\nended with {done.returncode}")
    return done.stdout


def settings_of(path: Path) -> configparser.ConfigParser:
    """Read a file in the format of setup.cfg."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(path, "utf-8")
    return settings


def copied(folder: Path) -> list[Path]:
    """Copy the files that git tracks; return the folders of the distributions."""
    for name in run("git", "ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return [folder, *sorted(path.parent for path in folder.glob("plugins/*/setup.cfg"))]


def build(sources: list[Path], dist: Path) -> list[Path]:
    """Build the sdist and the wheel of each folder, two folders at a time."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda source: run(*command, source), sources))
    return sorted(dist.iterdir())


@contextlib.contextmanager
def index(packages: Path) -> Iterator[str]:
    """Serve a folder as an index that takes uploads from everyone; yield its address."""
    packages.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "pypiserver",
        "run",
        "-i",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    command += ["-a", ".", "-P", ".", "--disable-fallback", "--server", "wsgiref"]
    command += ["--log-stream", "none", str(packages)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                opener.open(f"{url}health", timeout=5).close()
                break
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait()


def upload(files: list[Path], url: str) -> None:
    """Upload files with twine, which fails if the index has one of them."""
    command = [sys.executable, "-m", "twine", "upload", "--non-interactive"]
    command += ["--disable-progress-bar", "--repository-url", url]
    run(*command, *files, TWINE_USERNAME="anyone", TWINE_PASSWORD="any")


def install(environment: Path, url: str, *requirements: str) -> list[str]:
    """Install into a new environment; return our distributions, all from the index."""
    venv.create(environment, with_pip=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
    report = environment / "report.json"
    pip += ["--extra-index-url", f"{url}simple", "--report", report]
    run(*pip, *requirements)
    ours = []
    for entry in json.loads(report.read_text("utf-8"))["install"]:
        name, source = entry["metadata"]["name"], entry["download_info"]["url"]
        if name == "hookbus" or name.startswith("hookbus-"):
            if not source.startswith(url):
                sys.exit(f"{name} came from {source}, not from {url}")
            ours.append(name)
    return sorted(ours)


def first_script() -> tuple[str, str, str]:
    """Return the name and the text of the README's first script, and its command."""
    text = (ROOT / "README.md").read_text("utf-8")
    script = re.search(r'^```python title="([^"]+)"\n(.*?)^```', text, re.M | re.S)
    assert script is not None
    command = re.search(r"^\$ (hookbus run .*)$", text[script.end() :], re.M)
    assert command is not None
    return script[1], script[2], command[1]


def main() -> None:
    """Rehearse, and print each stage with its time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--built", action="store_true")
    parser.add_argument("folder", nargs="?", type=Path)
    options = parser.parse_args()
    start = time.monotonic()

    def note(stage: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {stage}", flush=True)

    with contextlib.ExitStack() as stack:
        made = options.folder or stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(made).resolve()
        if options.built:
            files = sorted((folder / "dist").iterdir())
        else:
            sources = copied(folder / "source")
            files = build(sources, folder / "dist")
            note(f"built {len(files)} files of {len(sources)} distributions")
        run(sys.executable, "-m", "twine", "check", "--strict", *files)
        url = stack.enter_context(index(folder / "index"))
        upload(files[: len(files) // 2], url)
        note(f"uploaded {len(files) // 2} files, as an upload that fails halfway does")
        there = {path.name for path in (folder / "index").iterdir()}
        upload([path for path in files if path.name not in there], url)
        kept = {path.name for path in (folder / "index").iterdir()}
        if kept != {path.name for path in files}:
            sys.exit(f"the index lacks {sorted({p.name for p in files} - kept)}")
        note(f"uploaded the rest; the index has {len(kept)} files")
        version = settings_of(ROOT / "setup.cfg")["metadata"]["version"]
        extras = "all,torch" if options.torch else "all"
        wanted = f"hookbus[{extras}]=={version}"
        environment = folder / "environment"
        ours = install(environment, url, wanted, "scikit-learn")
        note(f"installed {wanted}: {len(ours)} distributions from the index")
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        work = folder / "work"
        shutil.copytree(ROOT / "examples", work / "examples")

        def told(command: str) -> None:
            text = run(*shlex.split(command), folder=work, PATH=path)
            note(f"$ {command}")
            print(*text.splitlines()[-6:], sep="\n", flush=True)

        told("hookbus --version")
        demo = settings_of(ROOT / "tox.ini")["testenv:demo"]["commands"].strip()
        told(demo.splitlines()[0].removesuffix(" {posargs}"))
        told("hookbus why runs/digits")
        if options.torch:
            name, text, command = first_script()
            (work / name).write_text(text, "utf-8")
            told(command)
        note("done")


if __name__ == "__main__":
    main()
