"""JAX training runs as people write them, cut short at every step, are as by hand."""

from __future__ import annotations

from functools import partial

import attrs
import pytest

from tests.support.profiles import FULL, cases
from tests.support.zoo import KINDS, Run, Zoo, by_hand, started_again
from tests.support.zoo_jax import SEVERAL
from tests.support.zoo_jax_all import TRAININGS
from tests.support.zoo_jax_spread import devices, spread

# A process that has used JAX cannot fork; a server that has only imported it can.
RUN = Run(server="tests.support.zoo_jax_all", variables=devices(4))
CALLS = {"scanned": SEVERAL, "graph_that_scans": SEVERAL}
"""The number of steps that a call does, by training, where it does several."""
SOME = [(name, KINDS[n % len(KINDS)]) for n, name in enumerate(TRAININGS)][::3]
# A step leaves the arrays of a graph on a mesh in places of another form than these begin.
FINISHED = [name for name in TRAININGS if not name.startswith("graph_on_")]
PAIRS = [(name, kind) for name in TRAININGS for kind in KINDS]


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Let processes share what is compiled; the server reads this when it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Return the training runs, each of which is done by hand once."""
    return Zoo(TRAININGS, RUN, tmp_path_factory)


def steps_of(kind: str) -> list[int]:
    """Return the calls after which a run is cut short: every third one, or one."""
    first = 1 + KINDS.index(kind) % 3
    return [*range(first, 16, 3)] if FULL else [first + 3]


@pytest.mark.timeout(1800)  # of the full run: each start traces all functions anew
@pytest.mark.parametrize(("name", "kind"), cases(SOME, PAIRS))
def test_a_training_that_is_cut_short_is_the_training_by_hand(name, kind, zoo):
    """Leaves, weak types, shardings, keys, printed lines, and how often it compiles."""
    steps = [calls * CALLS.get(name, 1) for calls in steps_of(kind)]
    zoo.check_cut_short(name, kind, steps)


@pytest.mark.parametrize("name", FINISHED[:: cases(6, 1)])
def test_a_finished_training_does_nothing_until_it_gets_more_epochs(name, zoo, tmp_path):
    """Started again it changes no file; with two epochs more it goes on."""
    zoo.check_finished(name, tmp_path)


def bits_and_places(result):
    """Return the bits of all leaves by name, and where they are."""
    leaves, *_ = result
    bits = {name: [leaf[0], leaf[1], leaf[3]] for name, leaf in leaves.items()}
    return bits, {name: leaf[2] for name, leaf in leaves.items()}


@pytest.mark.parametrize(
    ("before", "after"),
    cases(
        [((2, 2), (2, 1)), ((1, 1), (2, 2))],
        [
            (one, other)
            for one in ((2, 2), (4, 1), (2, 1), (1, 1))
            for other in ((2, 2), (4, 1), (2, 1), (1, 1))
            if one != other
        ],
    ),
)
def test_a_checkpoint_is_restored_on_other_devices(before, after, tmp_path):
    """The values are those that were saved, in the places of the program that starts."""
    one, other = (
        attrs.evolve(RUN, epochs=1, variables=devices(shape[0] * shape[1]))
        for shape in (before, after)
    )
    done, _ = started_again(partial(spread, shape=before), one, tmp_path / "one")
    assert done.code == 0, done.log
    expected = by_hand(partial(spread, shape=after), other, tmp_path / "other")
    found, changed = started_again(partial(spread, shape=after), other, tmp_path / "one")
    assert found.code == 0, found.log
    restored, places = bits_and_places(found.result)
    assert restored == bits_and_places(done.result)[0]
    assert places == bits_and_places(expected.result)[1]
    assert not changed


def test_too_few_devices_are_an_error_of_jax_and_nothing_is_lost(tmp_path):
    """The checkpoints stay, and the training goes on where there are enough."""
    training = TRAININGS["square"]
    short = attrs.evolve(RUN, epochs=1)
    done, _ = started_again(training, short, tmp_path)
    assert done.code == 0, done.log
    few = attrs.evolve(RUN, variables=devices(2))
    failed, has_changed = started_again(training, few, tmp_path)
    assert failed.code == 1
    assert "cannot reshape array of size 2 into shape (2,2)" in failed.log
    assert not has_changed
    again, _ = started_again(training, RUN, tmp_path)
    whole = by_hand(training, RUN, tmp_path / "whole")
    assert again.result == whole.result, again.log
