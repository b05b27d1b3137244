"""A custom loop that was cut short goes on as if nothing had been."""

from __future__ import annotations

import contextlib
import random
import signal

import numpy as np
import pytest

from hookbus import CheckpointError, MonitoredTrainingSession
from tests.support.profiles import cases

PASSES, LENGTH = 4, 5
STEPS = PASSES * LENGTH


class Cut(Exception):
    """The error that cuts a session short, so that it saves nothing at its end."""


def cut_at(session, step):
    """Cut a session short at a step, when the body of its value is complete."""
    if session.global_step == step:
        raise Cut


def shuffle_python(draw):
    return random.sample(range(LENGTH), LENGTH)


def shuffle_numpy(draw):
    return np.random.permutation(LENGTH).tolist()


def shuffle_tracked(draw):
    return draw.permutation(LENGTH).tolist()


def lazily(shuffle):
    """Return an iterable that draws with each value, not only at its first."""

    def values(draw):
        for value in shuffle(draw):
            yield value, random.random(), np.random.random(), draw.random()

    return values


def at_the_first(shuffle):
    def values(draw):
        yield from shuffle(draw)

    return values


class when_opened:
    """Returns an iterable that draws as soon as it is asked for an iterator."""

    def __init__(self, shuffle):
        self.shuffle = shuffle

    def __call__(self, draw):
        self.draw = draw
        return self

    def __len__(self):
        return LENGTH

    def __iter__(self):
        return iter(self.shuffle(self.draw))


def noisily(saved, values, seed, cut=None):
    """Do all passes, or up to a step; return what each step had, and where it began."""
    random.seed(seed)
    np.random.seed(seed)
    trace = []
    with contextlib.suppress(Cut), saved(every=cut or STEPS) as session:
        draw = session.track(draw=np.random.default_rng(seed))
        start = session.global_step
        for _ in range(PASSES):
            for value in session.iterate(values(draw)):
                cut_at(session, cut)
                with session.step():
                    drawn = (random.random(), np.random.random(), draw.random())
                    trace.append((value, drawn))
            cut_at(session, cut)
    return start, trace


def quietly(saved, values, seed, cut=None):
    """Do the same in a loop that draws no number itself."""
    random.seed(seed)
    np.random.seed(seed)
    trace = []
    with contextlib.suppress(Cut), saved(every=cut or STEPS) as session:
        draw = session.track(draw=np.random.default_rng(seed))
        start = session.global_step
        for _ in range(PASSES):
            for value in session.iterate(values(draw)):
                cut_at(session, cut)
                with session.step():
                    trace.append(value)
            cut_at(session, cut)
    return start, trace


def by_steps(saved, draws, seed, until, at_once):
    """Do steps up to one, without passes; make data and model inside the session.

    Return what the steps make of them. *at_once* is whether all objects are tracked in one
    call.
    """
    np.random.seed(seed)
    random.seed(seed)
    trace = []
    with saved(every=2) as session:
        draw = np.random.default_rng(5)
        data = [np.random.normal(), random.random(), draw.random()]
        if not at_once:
            session.track(draw=draw)
        w = np.array([np.random.normal(), random.random(), draw.random()])
        session.track(w=w, **({"draw": draw} if at_once else {}))
        while session.global_step < until:
            x = [np.random.normal(), random.random(), draw.random()]
            with session.step():
                w += np.multiply(data, x) + draws(draw)
            trace.append(w.tolist())
    return trace


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("draws", [lambda draw: draw.normal(), lambda _: random.random()])
def test_a_loop_without_passes_goes_on_with_the_generators_of_its_last_step(
    saved, draws, at_once, tmp_path_factory, monkeypatch
):
    """A resumed program makes data and model again with the numbers of the first start."""
    straight = by_steps(saved, draws, 3, 9, at_once)
    monkeypatch.chdir(tmp_path_factory.mktemp("cut"))
    pieces = []
    for seed, until in ((3, 3), (4, 6), (5, 9)):
        pieces += by_steps(saved, draws, seed, until, at_once)
    assert pieces == straight


SOURCES = [shuffle_python, shuffle_numpy, shuffle_tracked]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("loop", [quietly, noisily])
@pytest.mark.parametrize("when", cases([lazily], [at_the_first, when_opened, lazily]))
@pytest.mark.parametrize("shuffle", SOURCES)
def test_a_loop_resumes_in_any_step_of_any_pass(
    saved, shuffle, when, loop, tmp_path_factory, monkeypatch
):
    """Cut short in a pass or between two, the rest is the same, bit for bit."""
    values = when(shuffle)
    _, straight = loop(saved, values, 1)
    assert len(straight) == STEPS

    for cut in cases((1, 5, 6, 13, 20), range(1, STEPS + 1)):
        monkeypatch.chdir(tmp_path_factory.mktemp("cut"))
        assert loop(saved, values, 1, cut) == (0, straight[:cut])
        # Other seeds: what goes on is from the checkpoint.
        assert loop(saved, values, 2) == (cut, straight[cut:])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shuffle", SOURCES)
def test_a_loop_may_be_cut_short_again_and_again(
    saved, shuffle, tmp_path_factory, monkeypatch
):
    """Twenty sessions of a step each are one session of twenty steps."""
    values = lazily(shuffle)
    _, straight = noisily(saved, values, 1)
    monkeypatch.chdir(tmp_path_factory.mktemp("pieces"))

    def each(every):
        return saved(every=1)

    pieces = [noisily(each, values, cut, cut) for cut in range(1, STEPS + 1)]

    assert pieces == [(number, [step]) for number, step in enumerate(straight)]


class Signalled:
    """An iterable in which a signal comes while its value number *at* is pulled."""

    def __init__(self, iterable, at):
        self.iterable, self.at = iterable, at

    def __iter__(self):
        iterator = iter(self.iterable)

        def values():
            for number, value in enumerate(iterator):
                if number == self.at:
                    signal.raise_signal(signal.SIGTERM)
                yield value

        return values()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("when", [at_the_first, when_opened, lazily])
@pytest.mark.parametrize("shuffle", SOURCES)
def test_a_value_that_is_pulled_while_a_signal_comes_has_its_step(
    saved, shuffle, when, tmp_path_factory, monkeypatch
):
    """The session ends when the body of the value is complete, and the rest is the same."""
    values = when(shuffle)
    _, straight = noisily(saved, values, 1)

    for done in cases((1, 5, 7, 19), range(1, STEPS)):
        monkeypatch.chdir(tmp_path_factory.mktemp("cut"))
        passes = iter(range(PASSES))

        def stopped(draw, passes=passes, done=done):
            at = done % LENGTH if next(passes) == done // LENGTH else None
            return Signalled(values(draw), at)

        assert noisily(saved, stopped, 1) == (0, straight[: done + 1])
        assert noisily(saved, values, 2) == (done + 1, straight[done + 1 :])


def test_what_the_body_draws_is_not_what_the_input_draws(saved):
    """Inside and outside the input a generator does not give the same numbers twice."""
    _, trace = noisily(saved, lazily(shuffle_tracked), 1)

    inside = [value[1:] for value, _ in trace]
    outside = [drawn for _, drawn in trace]
    assert not {n for row in inside for n in row} & {n for row in outside for n in row}


def test_passes_that_are_over_are_not_opened(saved):
    """A resumed loop does not read the passes that it was through with."""
    opened = []

    def values(number):
        opened.append(number)
        yield from range(LENGTH)

    for cut in (12, 100):
        opened.clear()
        with contextlib.suppress(Cut), saved() as session:
            for number in range(PASSES):
                for _ in session.iterate(values(number)):
                    cut_at(session, cut)
                    with session.step():
                        pass

    assert opened == [2, 3]


class Loader:
    """An iterable whose iterator saves and restores its own position."""

    def __init__(self):
        self.position, self.pulled = 0, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == LENGTH:
            raise StopIteration
        self.position += 1
        self.pulled += 1
        return self.position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def test_an_iterator_with_a_position_of_its_own_is_asked(saved):
    """Where the iterator can go to a position itself, no value is skipped by pulling."""
    seen, loaders = [], []
    for cut in (3, 100):
        loaders.append(Loader())
        with contextlib.suppress(Cut), saved() as session:
            for value in session.iterate(loaders[-1]):
                cut_at(session, cut)
                with session.step():
                    seen.append(value)

    assert seen == [1, 2, 3, 4, 5]
    assert [loader.pulled for loader in loaders] == [4, 2]


def test_a_position_of_its_own_is_that_of_the_last_step(saved):
    """A value that such an iterator gave in vain comes again as well."""
    seen = []
    for at in (3, None):
        with saved(every=100) as session:
            for value in session.iterate(SignalledLoader(at)):
                with session.step():
                    seen.append(value)

    assert seen == [1, 2, 3, 4, 5]


class SignalledLoader(Loader):
    """One in which a signal comes while a value is pulled."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def __next__(self):
        if self.position == self.at:
            signal.raise_signal(signal.SIGTERM)
        return super().__next__()


def test_data_that_became_shorter_is_an_error(saved):
    """A pass that ends before the position says where the checkpoint stands."""
    with contextlib.suppress(Cut), saved() as session:
        for _ in session.iterate(range(LENGTH)):
            cut_at(session, 4)
            with session.step():
                pass

    with (
        pytest.raises(
            CheckpointError, match=r"the checkpoint is at value 4 .* ends after 3"
        ),
        saved() as session,
    ):
        next(iter(session.iterate(range(3))))


@pytest.mark.parametrize("tracked", [False, True])
def test_an_input_that_gives_other_values_is_noticed(tracked, tmp_path, lines):
    """A generator that the session does not track makes another shuffle after a kill."""

    def train(seed, cut):
        draw = np.random.default_rng(seed)
        with (
            contextlib.suppress(Cut),
            MonitoredTrainingSession(
                checkpoint_dir=tmp_path, save_checkpoint_steps=1
            ) as session,
        ):
            if tracked:
                session.track(draw=draw)
            for _ in session.iterate(at_the_first(shuffle_tracked)(draw)):
                with session.step():
                    pass
                if session.global_step == cut:
                    raise Cut

    train(1, cut=2)
    train(2, cut=4)
    noticed = [line for line in map(str, lines) if "gives other values" in line]
    assert bool(noticed) is not tracked
    if noticed:
        assert "a generator that hookbus does not know" in noticed[0]
