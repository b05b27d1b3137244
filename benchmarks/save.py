"""Measures what a save of a large state costs: the hold of the loop, the time, the memory.

A custom loop, or a graph, has arrays of 1 GB in all, and saves a few times: at once, and in
the background during training. Each row has

* the hold: how long the step with the save takes, in milliseconds, and in units of a copy
  of the same bytes into memory that is in use already;
* the total: until the checkpoint is safe on the disk, in units of a plain write of the same
  bytes with an fsync, which takes turns with it;
* the memory: the peak of the process beyond what the training holds, in units of the state.

Below them are rows of others that save in the background, where they are installed. The
bounds stand beside the numbers, and the exit code is 1 if one is exceeded:

    python benchmarks/save.py [--megabytes 1000] [--rounds 9]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import hookbus

ARRAYS = 10
HELD_MS = 5.0
"""The most milliseconds for which a save holds the loop where nothing is copied."""
HELD_COPIES = 1.2
"""The most that a save holds the loop where the state is copied, in units of a copy."""
AT_ONCE, BESIDE = 1.2, 1.5
"""The most that a save takes, at once and during training, in units of a plain write."""
MEMORY_AT_ONCE, MEMORY_OF_COPY = 0.3, 1.1
"""The most memory beyond the state, at once and with a copy, in units of the state."""


@attrs.frozen
class Row:
    """The cost of a save, as medians.

    Attributes:
        held: the seconds for which the loop stands still.
        total: the seconds until the checkpoint is safe.
        write: the seconds of a plain write.
        copy: the seconds of a plain copy.
        memory: the peak beyond the state, in units of the state.
    """

    held: float
    total: float
    write: float
    copy: float
    memory: float

    def text(self, what: str, bounds: Bounds) -> str:
        """Return the row with its bounds."""
        held = f"held {1e3 * self.held:7.1f} ms = {self.held / self.copy:5.2f} copies"
        total = f"total {self.total:5.2f} s = {self.total / self.write:4.2f} writes"
        line = f"{what:22} {held}{bounds.of_hold:12} {total}{bounds.of_total:10} "
        line += f"memory {self.memory:4.2f}{bounds.of_memory}"
        return line + ("  TOO MUCH" if bounds.exceeded(self) else "")


@attrs.frozen
class Bounds:
    """The most that a row may have; None for any."""

    held_ms: float | None = None
    held_copies: float | None = None
    writes: float | None = None
    memory: float | None = None

    @property
    def of_hold(self) -> str:
        if self.held_ms is not None:
            return f" (<= {self.held_ms:g} ms)"
        return "" if self.held_copies is None else f" (<= {self.held_copies:g})"

    @property
    def of_total(self) -> str:
        return "" if self.writes is None else f" (<= {self.writes:g})"

    @property
    def of_memory(self) -> str:
        return "" if self.memory is None else f" (<= {self.memory:g})"

    def exceeded(self, row: Row) -> bool:
        """Return whether a row has more."""
        pairs = (
            (self.held_ms, 1e3 * row.held),
            (self.held_copies, row.held / row.copy),
            (self.writes, row.total / row.write),
            (self.memory, row.memory),
        )
        return any(most is not None and found > most for most, found in pairs)


class Plain:
    """Writes and copies the bytes of a state plainly, for comparison."""

    def __init__(self, megabytes: int, folder: Path) -> None:
        size = megabytes * 1_000_000 // ARRAYS // 4
        self.arrays = [np.ones(size, np.float32) for _ in range(ARRAYS)]
        self.target = np.zeros_like(self.arrays[0])
        self.path = folder / "plain"
        self.writes: list[float] = []
        self.copies: list[float] = []

    def measure(self) -> None:
        """Write the bytes to a file that replaces the one before, and copy them."""
        start, new = time.perf_counter(), self.path.with_suffix(".new")
        with new.open("wb") as file:
            for array in self.arrays:
                file.write(memoryview(array))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        self.writes.append(time.perf_counter() - start)
        start = time.perf_counter()
        for array in self.arrays:
            np.copyto(self.target, array)
        self.copies.append(time.perf_counter() - start)


def numpy_loop(megabytes: int) -> Any:
    """Return arrays that change in place."""
    size = megabytes * 1_000_000 // 4 // ARRAYS
    return {f"w{n}": np.full(size, n, np.float32) for n in range(ARRAYS)}


def torch_loop(megabytes: int) -> Any:
    """Return tensors, which change in place."""
    torch = importlib.import_module("torch")
    return {name: torch.from_numpy(array) for name, array in numpy_loop(megabytes).items()}


def cuda_loop(megabytes: int) -> Any:
    """Return tensors on a CUDA device, which change in place."""
    return {name: tensor.cuda() for name, tensor in torch_loop(megabytes).items()}


def jax_loop(megabytes: int) -> Any:
    """Return arrays that cannot change."""
    jnp = importlib.import_module("jax.numpy")
    return {name: jnp.asarray(array) for name, array in numpy_loop(megabytes).items()}


LOOPS: dict[str, tuple[Callable[[int], Any], tuple[str, ...]]] = {
    "numpy": (numpy_loop, ()),
    "graph": (numpy_loop, ()),
    "torch": (torch_loop, ("torch", "hookbus_torch")),
    "cuda": (cuda_loop, ("torch", "hookbus_torch")),
    "jax": (jax_loop, ("jax", "hookbus_jax")),
}
"""The kinds of states, each with what makes it and the modules that it needs."""
IMMUTABLE = ("graph", "jax")
OTHERS = {"torch DCP async_save": "torch", "orbax AsyncCheckpointer": "orbax"}
"""Others that save in the background, each with the module that it needs."""


class Saved(hookbus.SessionRunHook):
    """Notes that a checkpoint is safe."""

    is_done = False

    @hookbus.hookimpl
    def after_save(self) -> None:
        self.is_done = True


def opened(
    what: str, state: dict[str, Any], **options: Any
) -> tuple[hookbus.MonitoredSession, Callable[[], object]]:
    """Open a session that takes over a state; return it, and a function for a step."""
    if what != "graph":
        session = hookbus.MonitoredTrainingSession(**options)
        if what == "jax":
            session.hold(state=state)
        else:
            session.track(state=state)

        def step() -> None:
            with session.step():
                pass

        return session, step
    graph = hookbus.Graph()
    for variable in [*state]:
        graph.variable(variable, state.pop(variable))
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    session = hookbus.MonitoredTrainingSession(graph, **options)
    return session, lambda: session.run("train")


def measure(what: str, background: bool, megabytes: int, rounds: int) -> str:
    """Save a state several times, and return the row with what that costs."""
    settings = hookbus.Config(autoload=False).with_options(
        "checkpoint-saver", save_steps=10**9, max_to_keep=1, background=background
    )
    asks, saved = Asks(), Saved()
    with tempfile.TemporaryDirectory() as name:
        plain = Plain(megabytes, Path(name))
        session, step = opened(
            what,
            LOOPS[what][0](megabytes),
            checkpoint_dir=Path(name, "run"),
            log_step_count_steps=None,
            save_summaries_steps=None,
            hooks=[asks, saved],
            config=settings,
        )
        with session:
            step()

            def save(_: int) -> Callable[[], bool]:
                asks.next, saved.is_done = True, False
                step()

                def is_done() -> bool:
                    step()
                    return saved.is_done

                return lambda: saved.is_done or is_done()

            row = measured(save, plain, megabytes, rounds)
    if not background:
        bounds = Bounds(writes=AT_ONCE, memory=MEMORY_AT_ONCE)
    elif what in IMMUTABLE:
        bounds = Bounds(held_ms=HELD_MS, writes=BESIDE, memory=MEMORY_AT_ONCE)
    else:
        # PyTorch rounds the size of each piece of pinned memory up to a power of 2.
        memory = None if what == "cuda" else MEMORY_OF_COPY
        bounds = Bounds(held_copies=HELD_COPIES, writes=BESIDE, memory=memory)
    return row.text(f"{what}, {'background' if background else 'at once'}", bounds)


def measured(
    save: Callable[[int], Callable[[], bool]], plain: Plain, megabytes: int, rounds: int
) -> Row:
    """Save several times, the first time without counting it; return the medians.

    Args:
        save: begins a save, given its number, and returns a function that returns whether
            it is safe.
        plain: what it is compared with.
        megabytes: the size of the state.
        rounds: how often.
    """
    held, total = list[float](), list[float]()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    for number in range(rounds + 1):
        plain.measure()
        start = time.perf_counter()
        is_done = save(number)
        held.append(time.perf_counter() - start)
        while not is_done():
            train_for(0.02)
        total.append(time.perf_counter() - start)
    memory = (resident("VmHWM") - before) / (megabytes * 1e6)
    each = (held, total, plain.writes, plain.copies)
    medians = [statistics.median(seconds[1:]) for seconds in each]
    return Row(*medians, memory=memory)


class Asks(hookbus.SessionRunHook):
    """Asks for a checkpoint after the next step."""

    next = False

    def after_run(self, run_context: Any) -> None:
        if self.next:
            self.next = False
            run_context.request_save("measured")


def train_for(seconds: float) -> None:
    """Compute for a while, as a run would."""
    end, small = time.perf_counter() + seconds, np.ones((200, 200), np.float32)
    while time.perf_counter() < end:
        small = small @ small * 1e-3


def measure_other(what: str, megabytes: int, rounds: int) -> str:
    """Save with something else that saves in the background; return its row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = Plain(megabytes, folder)
        save = dcp(folder, megabytes) if "DCP" in what else orbax(folder, megabytes)
        return measured(save, plain, megabytes, rounds).text(what, Bounds())


def dcp(folder: Path, megabytes: int) -> Callable[[int], Callable[[], bool]]:
    """Return a function that saves tensors with torch.distributed.checkpoint."""
    distributed = importlib.import_module("torch.distributed")
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1
    )
    state = torch_loop(megabytes)

    def save(number: int) -> Callable[[], bool]:
        place = folder / "dcp"
        future = checkpoint.async_save(state, checkpoint_id=place / str(number % 2))
        return lambda: bool(future.done())

    return save


def orbax(folder: Path, megabytes: int) -> Callable[[int], Callable[[], bool]]:
    """Return a function that saves arrays with orbax."""
    ocp = importlib.import_module("orbax.checkpoint")
    saver, state = (
        ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()),
        jax_loop(megabytes),
    )

    def save(number: int) -> Callable[[], bool]:
        place = folder / "orbax" / str(number % 2)
        saver.save(place, args=ocp.args.StandardSave(state), force=True)

        def is_done() -> bool:
            if list(place.parent.glob("*orbax-checkpoint-tmp*")):
                return False
            saver.wait_until_finished()
            return True

        return is_done

    return save


def resident(which: str = "VmRSS") -> int:
    """Return the bytes of memory that this process holds now, or at most (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


def is_available(what: str) -> bool:
    """Return whether this machine has what a kind of state needs."""
    if not all(map(importlib.util.find_spec, LOOPS[what][1])):
        return False
    return what != "cuda" or bool(importlib.import_module("torch").cuda.is_available())


def main() -> int:
    """Measure each row in its own process; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        what, how = given.row
        sizes = given.megabytes, given.rounds
        other = what in OTHERS
        print(measure_other(what, *sizes) if other else measure(what, how == "1", *sizes))
        return 0
    rows = [(what, how) for what in LOOPS if is_available(what) for how in ("0", "1")]
    rows += [(o, "") for o, module in OTHERS.items() if importlib.util.find_spec(module)]
    exceeded = False
    for row in rows:
        command = [sys.executable, __file__, "--row", *row]
        command += [f"--megabytes={given.megabytes}", f"--rounds={given.rounds}"]
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # the training has one thread
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=env
        )
        lines = [line for line in done.stdout.splitlines() if " held " in line]
        print("\n".join(lines), flush=True)
        exceeded |= any("TOO MUCH" in line for line in lines)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
