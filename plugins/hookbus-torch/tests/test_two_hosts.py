"""Two hosts with two ranks each: one is cut off, and the others say which are missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookbus import latest_checkpoint
from tests.support.ranks import kill_all

SCRIPT = Path(__file__).with_name("rank_training.py")
LIMIT = 15
"""The time limit of the process group, in seconds."""
HOSTS = {"hookbus-a": "10.213.7.1", "hookbus-b": "10.213.7.2"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="only root can make network namespaces, with the command ip",
    ),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    """Give two network namespaces an address each, and a link between them."""
    remove_hosts()
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        first, second = HOSTS
        ends = ["link", "add", "hb-a", "netns", first, "type", "veth"]
        ip(*ends, "peer", "name", "hb-b", "netns", second)
        for (host, address), link in zip(HOSTS.items(), ("hb-a", "hb-b"), strict=True):
            ip("-n", host, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", host, "link", "set", link, "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield
    finally:
        remove_hosts()


def remove_hosts() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


def start(node: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start the two ranks of a host."""
    host, (first, *_) = [*HOSTS][node], HOSTS.values()
    launcher = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    launcher += ["--node-rank", str(node), "--master-addr", first, "--master-port", "29713"]
    script = [str(SCRIPT), str(folder), "--steps", "10000", "--limit", str(LIMIT)]
    link = "hb-a" if node == 0 else "hb-b"
    return subprocess.Popen(
        ["ip", "netns", "exec", host, sys.executable, *launcher, *script],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": link},
    )


def test_ranks_that_are_cut_off_are_named(hosts, tmp_path):
    """In the time limit; what was saved is good."""
    nodes = [start(node, tmp_path) for node in range(2)]
    try:
        saved = tmp_path / "checkpoints"
        end = time.monotonic() + 60
        while not (saved / "ckpt-10").exists():
            assert time.monotonic() < end, "it hangs"
            time.sleep(0.1)
        ip("-n", "hookbus-b", "link", "set", "hb-b", "down")
        cut = time.monotonic()
        while not all((tmp_path / f"rank-{rank}.json").exists() for rank in (0, 1)):
            assert time.monotonic() < cut + LIMIT + 30, "the ranks hang"
            time.sleep(0.1)
    finally:
        kill_all(tmp_path)
        for node in nodes:
            node.wait(10)
    for rank in (0, 1):
        error = json.loads((tmp_path / f"rank-{rank}.json").read_text())["error"]
        assert error.startswith("PeerFailedError: no answer from rank 2, 3 of 4"), error
    newest = latest_checkpoint(saved)
    assert newest is not None
    assert newest.global_step >= 10
