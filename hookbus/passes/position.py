"""Counts how far a custom loop has come, and leads a resumed program to its place."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from hookbus.backend.inputs import Input
from hookbus.errors import OutOfRangeError, UsageError
from hookbus.library.lookup import library_of
from hookbus.logs import log
from hookbus.passes.place import BEFORE_ALL, Body, Pass, PassEvents, bare, upgraded
from hookbus.random_state import RandomGenerators, same

_OF_THE_END = ("ended", "length", "sources")
_MOST_ENDS = 256
"""How many passes of one body have the generators kept as they were at their end."""


class ProgramPosition:
    """Counts how far a custom loop has come, and leads a resumed program to this position.

    The position of a body has three parts: the number of its complete passes, the place in
    the open pass or in the one that ended last, and the number of safepoints since then.
    The place in an open pass is the number of values whose body is complete. If a value is
    in hand, its body has a position as well.

    A resumed program starts from its top. It skips the complete passes, with the generators
    as they were at the end of each, and continues the open pass at its place. The code
    around the passes runs again and may change tracked objects. When the program arrives at
    the position, these objects get the state of the checkpoint once more.

    Args:
        generators: captures and restores the random generators that a pass may draw from.
    """

    def __init__(self, generators: RandomGenerators) -> None:
        self._generators = generators
        self._evaluated: dict[str, int] = {}
        self._repeats: Callable[[], None] | None = None
        self._increment = 1
        self._begin(BEFORE_ALL, None)

    def _begin(
        self, position: Mapping[str, Any], arrived: Callable[[bool], None] | None
    ) -> None:
        self._loaded, self._arrived = position, arrived
        self._root = self._body = Body()
        self._root.target = None if arrived is None else position
        self._open: list[Pass] = []
        self._awaited: tuple[Body, int] | None = None
        self._has_epochs = self._draws_unknown = False
        self._passed_over: Mapping[str, Any] | None = None
        self._is_kept = False
        self._loaders: dict[str, Any] = {}
        self._back_at: int | None = None
        self._usual: float | None = None
        self._given_before: int | None = None

    def iterate(
        self,
        iterable: Iterable[Any],
        events: PassEvents,
        wrap: Callable[[Any], Any] | None = None,
        start: int | None = None,
        name: str | None = None,
    ) -> Generator[Any, None, None]:
        """Yield the values of one pass from its position on, until the session stops.

        Args:
            iterable: the input.
            events: the session.
            wrap: returns what to yield in place of a value.
            start: the index of the first value. If it is given, pairs of index and value
                are yielded.
            name: the name under which hooks may wrap the values.

        Raises:
            UsageError: a pass of this name is open.
        """
        self._check_name(name)
        self._reach_pass()
        events.begins()
        each = self._begin_pass(iterable, name, wraps=wrap is not None)
        if each is None:
            return
        source, body, opened = each.source, each.body, self._open
        was_over, keeps, self._body = source.ended, events.keeps_values, body
        try:
            while True:
                try:
                    if each.has_passes or each.repeats or each.awaited is not None or keeps:
                        value = self._value(each, events)
                    else:  # nearly always, and without a call that it could go without
                        value = source.pull()
                        body.begin_value()
                except OutOfRangeError:
                    events.before_end()
                    if source.ended:
                        break
                    continue
                value = value if wrap is None else wrap(value)
                yield value if start is None else (start + source.pulled - 1, value)
                if self._arrived is None and opened and opened[-1] is each:
                    each.done = source.pulled
                else:
                    self._finish_body(each)
                if events.before_value():
                    each.is_stopped = True
                    return
        except GeneratorExit:
            self._close(each)
            self._note_end(each)
            raise
        finally:
            self._close(each)
        if not was_over:
            events.pass_ended(each.number)
        self._note_end(each)

    def epochs(self, count: int, events: PassEvents) -> Generator[int, None, None]:
        """Yield the numbers of the epochs that are not finished, until the session stops.

        Each begins with the generators as they were when it began for the first time.

        Args:
            count: the number of all epochs.
            events: the session.

        Raises:
            UsageError: a pass is open, the program has called this before, or more epochs
                than *count* are finished.
        """
        if self._open:
            raise UsageError("epochs() inside iterate(): put the passes inside the epochs")
        if self._has_epochs:
            raise UsageError(
                "epochs() is called twice: a session has one loop over epochs; count all "
                "epochs in one call"
            )
        self._has_epochs = True
        self._reach_pass()
        events.begins()
        self._check_epochs(count)
        each = self._begin_pass(range(count), is_epochs=True)
        if each is None:
            return
        each.has_passes = True
        try:
            while True:
                try:
                    number = self._pull(each)
                except OutOfRangeError:
                    break
                yield number
                if not events.has_stopped():
                    self._finish_body(each)
                    events.epoch_ended(number)
                if events.before_value():
                    each.is_stopped = True
                    return
        finally:
            self._close(each)
        events.epochs_ended()

    @property
    def innermost(self) -> Pass | None:
        """The innermost open pass; None between two passes."""
        return self._open[-1] if self._open else None

    @property
    def epoch(self) -> int | None:
        """The number of the epoch, or of the outermost pass; None between two passes."""
        if not self._open:
            return None
        outermost = self._open[0]
        return outermost.done if outermost.is_epochs else outermost.number

    @property
    def counts_epochs(self) -> bool:
        """Whether the program has a loop over epochs."""
        return self._has_epochs

    @property
    def holds(self) -> bool:
        """Whether the program is in the body of a value, which has to be complete first."""
        return bool(self._open) and self._open[-1].holds

    @property
    def has_wrapped(self) -> bool:
        """Whether hooks have wrapped the value in hand."""
        return bool(self._open) and self._open[-1].wraps and self._open[-1].has_value

    def body_secs(self, until: float) -> float:
        """Return the seconds that the body of a value takes: the mean in the open pass.

        *until* is the time of ``time.monotonic()`` at which the measurement ends.
        """
        each = self.innermost
        return 0.0 if each is None else (until - each.began) / (each.done + 1)

    @property
    def body_steps(self) -> int:
        """The number of steps in the body of the value in hand."""
        return self._body.steps

    @property
    def resuming(self) -> bool:
        """Whether the program is still on its way to the position of the checkpoint."""
        return self._arrived is not None

    def is_evaluated(self, name: str | None, step: int) -> bool:
        """Return whether an evaluation of this name at a global step was noted."""
        return self._evaluated.get(name or "") == step

    def note_evaluation(self, name: str | None, step: int) -> None:
        """Note an evaluation of which hooks are told."""
        self._evaluated[name or ""] = step

    def forget_evaluations(self, step: int) -> None:
        """Forget the evaluations after a global step, to which the loop goes back."""
        self._evaluated = {n: at for n, at in self._evaluated.items() if at <= step}

    def remaining(self) -> int | None:
        """Return how many steps the open pass still has, if its iterable has a length.

        Each value is expected to have as many as the mean of those before it in the pass,
        and before the first step as many as a block counts. Epochs after the open one are
        expected to be passes like this one. It is None if they have several passes.
        """
        each = self.innermost
        if each is None or each.is_epochs or each.has_passes:
            return None
        left = each.source.remaining()
        if left is None:
            return None
        usual = self._increment if self._usual is None else self._usual
        here = each.body.expected(left, usual)
        around = self._open[-2] if len(self._open) > 1 else None
        epochs = around.source.remaining() if around and around.is_epochs else 0
        if not around or not epochs:
            return here
        if around.body.passes > 1:
            return None
        length = each.source.length() or 0
        return here + epochs * round(length * each.body.mean(usual))

    def expect(self, increment: int) -> None:
        """Note how many global steps each of the next blocks counts."""
        self._increment = increment

    def count_more(self, steps: int) -> None:
        """Count further global steps of the block that ends: those after its first one."""
        self._body.more += steps

    def begin_step(self, trains: bool) -> None:
        """Count the start of a step, which is a safepoint.

        If the step trains, the program has arrived, even if it came another way than the
        program before.

        Raises:
            UsageError: the step trains outside of the passes of a program that has some.
        """
        body = self._body
        if trains and body.last is not None and not self._open:
            raise UsageError(
                "step() after a pass of iterate(): a resumed program would repeat the "
                "step; put it into a pass, as in session.iterate(range(n))"
            )
        body.safepoints += 1
        if self._arrived is not None:
            if trains:
                self.reach_safepoint()
            else:
                self._check_arrival()

    def step_done(self) -> None:
        """Count a step that was done."""
        self._body.steps += 1

    def safepoint(self) -> None:
        """Count a safepoint: the program is where the session may save or stop."""
        self._body.safepoints += 1
        if self._arrived is not None:
            self._check_arrival()

    def reach_safepoint(self, generators: bool = True) -> None:
        """Give the tracked objects the state of the checkpoint: the program has arrived.

        *generators* is whether the random generators get theirs.
        """
        arrived, self._arrived, self._awaited = self._arrived, None, None
        self._root.target = None
        for each in self._open:
            each.body.target = None
        if arrived is not None:
            arrived(generators)

    def finish(self) -> None:
        """Note the end of the program, which counts as arrived in any case."""
        if self.holds:  # the program has left its passes in the middle of a body
            self._close(self._open[0])
        self.safepoint()
        if self.resuming:
            # A program that counts epochs in what it tracks may begin no pass at all.
            self._is_kept = True
            self.reach_safepoint()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        if self.resuming or self._is_kept:
            return dict(self._loaded)
        position = self._root.position()
        return {**position, "evaluated": self._evaluated} if self._evaluated else position

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        arrived: Callable[[bool], None] | None = None,
        repeats: Callable[[], None] | None = None,
    ) -> None:
        """Take over a position; the next passes move to it.

        Args:
            state: the position.
            arrived: is called when the program arrives at the position. Takes whether the
                random generators get the state of the checkpoint.
            repeats: is called when the program begins to go through complete passes again.
        """
        self._repeats = repeats
        position = upgraded(state)
        is_somewhere = position["over"] or position["within"] or position["marks"]
        self._begin(position, arrived if is_somewhere else None)
        self._evaluated = dict(position.get("evaluated", {}))
        if position["marks"] and not position["over"] and not position["within"]:
            self._awaited = self._root, position["marks"]

    def why_not_back(self, state: Mapping[str, Any]) -> str | None:
        """Return why the open pass cannot go back to a position; None if it can."""
        if not self._open or self._open[-1].is_epochs:
            return "no pass over it is open"
        within = self._within(state)
        if within is None:
            return "the checkpoint is from an earlier pass"
        if not self._open[-1].source.can_go_back(within):
            return "it is an iterator, which gives each value once"
        return None

    def given_last(self) -> dict[str, list[int]]:
        """Return the number of the last value of the open pass, by the number of the pass.

        The result is empty without an open pass, and if no value came since a roll-back.
        """
        each = self.innermost
        if each is None or each.is_epochs or each.source.pulled in (0, self._back_at):
            return {}
        return {str(each.number): [each.source.pulled - 1]}

    def given(self) -> dict[str, int]:
        """Return the number of the value in hand of the open pass, by the pass's name."""
        each = self.innermost
        if each is None or each.is_epochs or not each.source.pulled:
            return {}
        return {each.name or "iterate": each.source.pulled - 1}

    def repeat_value(self) -> None:
        """Have the open pass give the value in hand once more."""
        each = self._open[-1]
        each.done, each.repeats = each.source.pulled - 1, True

    def go_back(
        self, state: Mapping[str, Any], left_out: Mapping[str, Iterable[int]]
    ) -> None:
        """Have the open pass give the values after a position once more.

        Args:
            state: a position for which :meth:`why_not_back` returns None.
            left_out: the numbers of the values to leave out, as from :meth:`given_last`.

        Raises:
            CheckpointError: the input ends before the position.
        """
        each, within = self._open[-1], self._within(state)
        assert within is not None
        each.source.go_back(bare(within), left_out.get(str(each.number), ()))
        each.done = self._back_at = each.source.pulled

    def _begin_pass(
        self,
        iterable: Iterable[Any],
        name: str | None = None,
        wraps: bool = False,
        is_epochs: bool = False,
    ) -> Pass | None:
        """Begin a pass; return None if it was complete in the program before."""
        body = self._body
        number, target = body.passes, body.target
        body.passes += 1
        if target is not None and number < target["over"]:
            self._pass_over(body, number)
            return None
        within = target["within"] if target and number == target["over"] else {}
        if target is not None and not within:
            self.reach_safepoint()  # the program came another way
        self._prepare_loader(iterable, number)
        label = "epochs()" if is_epochs else f"iterate() call {number + 1}"
        source = Input(label, lambda: iterable, self._generators)
        self._given_before = None if body.last is None else body.last.source.pulled
        each = body.last = Pass(number, source, name, wraps, is_epochs)
        body.safepoints, self._back_at = 0, None
        if self._open:
            self._open[-1].has_passes = True
        self._open.append(each)
        try:
            if within and target is not None:
                self._resume(each, within, target)
            else:
                self._continue_loader(each)
        except BaseException:
            self._close(each)
            raise
        return each

    def _check_name(self, name: str | None) -> None:
        """Refuse a pass inside one of its own name.

        Raises:
            UsageError: there is such a pass.
        """
        if name is not None and any(each.name == name for each in self._open):
            raise UsageError(
                f"iterate(name={name!r}) inside a pass of this name: give each input its "
                "own name"
            )

    def _check_epochs(self, count: int) -> None:
        """Refuse fewer epochs than the program before has begun.

        Raises:
            UsageError: there are fewer.
        """
        target = self._root.target
        if target is None or target["over"] != self._root.passes:
            return
        within = target["within"]
        begun = within.get("pulled", 0) + ("body" in within)
        if count < begun:
            raise UsageError(
                f"epochs({count}), but the training in the checkpoint has come to epoch "
                f"{begun}: give at least {begun}, or another checkpoint_dir"
            )

    def _prepare_loader(self, iterable: Iterable[Any], number: int) -> None:
        """Tell a loader, whose shuffle depends on it, the number of its pass."""
        library = library_of(iterable)
        loader = None if library is None else library.loader(iterable)
        if loader is not None and loader.begin_pass is not None:
            epoch = self.epoch if self._has_epochs else None
            loader.begin_pass(number if epoch is None else epoch)

    def _continue_loader(self, each: Pass) -> None:
        """Have a loader go on from the last epoch that the program before has done."""
        around = self._open[-2] if len(self._open) > 1 else None
        if around is None or not around.is_epochs:
            return
        known = self._loaders.pop(str(each.number), None)
        if known is not None:
            each.source.continue_loader(known)

    def _note_loader(self, each: Pass) -> None:
        """Keep what the order of a loader depends on, for the next epoch."""
        around = self.innermost
        start, end = each.source.loader_states()
        if around is None or not around.is_epochs or not start:
            return
        known = around.loaders.get(str(each.number))
        first, is_only = start if known is None else known["first"], known is None
        states = {"first": first, "start": start, "end": end, "is_only": is_only}
        around.loaders[str(each.number)] = states

    def _pass_over(self, body: Body, number: int) -> None:
        """Leave out a pass that was complete, with the generators as at its end."""
        assert body.target is not None
        body.safepoints = 0
        if body is self._root and self._repeats is not None:
            self._repeats()
            self._repeats = None
        state = body.target.get("ends", {}).get(str(number))
        if state is not None:
            self._generators.restore(state)
            body.ends[str(number)] = state
            return
        now = self._generators.capture()
        draws = self._passed_over is not None and not same(now, self._passed_over)
        if draws and not self._draws_unknown:
            self._draws_unknown = True
            log.warning(
                "the code between passes draws other numbers than before the restart",
                why=f"the checkpoint has the generators of the last {_MOST_ENDS} passes; "
                "session.epochs(n) repeats no finished epoch",
            )
        self._passed_over = self._generators.capture()

    def _resume(
        self, each: Pass, within: Mapping[str, Any], target: Mapping[str, Any]
    ) -> None:
        """Move a pass to its place in the checkpoint."""
        source, position = each.source, bare(within)
        if _is_longer(source, position):
            position = {k: v for k, v in position.items() if k not in _OF_THE_END}
        if "ended" in position:
            body = self._open[-2].body if len(self._open) > 1 else self._root
            source.load_state_at_end(position)
            each.done, body.target = source.pulled, None
            self._generators.restore(target.get("ends", {}).get(str(each.number), {}))
            self._await(body, target["marks"])
            return
        source.load_state_dict(position)
        each.done = source.pulled
        if each.is_epochs:
            each.loaders = dict(within.get("loaders", {}))
            self._loaders = dict(each.loaders)
        if "body" in within:
            each.awaited = within["body"], within.get("random", {})
        else:
            self.reach_safepoint()

    def _await(self, body: Body, safepoints: int) -> None:
        """Have the program arrive at a safepoint of a body."""
        self._awaited = body, safepoints
        if not safepoints:
            self.reach_safepoint()

    def _check_arrival(self, generators: bool = True) -> None:
        if self._awaited is not None:
            body, safepoints = self._awaited
            if body is self._body and body.safepoints >= safepoints:
                self.reach_safepoint(generators)

    def _reach_pass(self) -> None:
        """Count the safepoint at which a pass begins.

        If the program before ended there, it did not draw what this program has drawn since
        the last pass, for the new one. The generators were put back at the end of that.
        """
        body = self._body
        body.safepoints += 1
        if self._arrived is not None:
            last = body.last
            self._check_arrival(last is None or str(last.number) not in body.ends)

    def _value(self, each: Pass, events: PassEvents) -> Any:
        """Return the next value, or the one in hand once more; begin its body."""
        if each.repeats:
            each.repeats = False
            each.body.begin_again()
            return events.again()
        value = self._pull(each)
        events.pulled(value)
        return value

    def _pull(self, each: Pass) -> Any:
        """Return the next value, and begin its body."""
        body = self._body = each.body
        # A resumed program has had passes in this body if the checkpoint has its start.
        if each.has_passes or (each.awaited is not None and each.awaited[1]):
            position = each.source.state_at(each.done)
            value = each.source.pull()
            each.before = position, self._generators.capture_all()
            body.passes, body.last, body.ends = 0, None, {}
        else:
            value = each.source.pull()
        body.begin_value()
        if each.awaited is not None:
            self._resume_body(each, *each.awaited)
        return value

    def _resume_body(
        self, each: Pass, target: Mapping[str, Any], random: Mapping[str, Any]
    ) -> None:
        """Lead the program to its place in the body of the value in hand."""
        each.awaited = None
        if random:
            self._generators.restore(random)
            if each.before is not None:
                each.before = each.before[0], random
        if target["within"] or target["over"]:
            each.body.target = target
            each.has_passes = True
        else:
            self._await(each.body, target["marks"])

    def _finish_body(self, each: Pass) -> None:
        """Note that the program has done all that it does for the value in hand.

        Raises:
            UsageError: the pass was left before.
        """
        while self._open and self._open[-1] is not each and each in self._open:
            self._close(self._open[-1])
        if not self._open or self._open[-1] is not each:
            raise UsageError(
                "a pass of iterate() goes on after the pass around it: iterate over both "
                "inputs in one pass, as in iterate(zip(one, other))"
            )
        if self.resuming:
            self.reach_safepoint()  # the program came another way
        each.done = each.source.pulled

    def _close(self, each: Pass) -> None:
        """Note that the program has left a pass, and those inside."""
        if each not in self._open:
            return
        first = self._open.index(each)
        for left in self._open[first:]:
            left.is_open = False
        del self._open[first:]
        self._body = self._open[-1].body if self._open else self._root
        self._body.safepoints = 0

    def _note_end(self, each: Pass) -> None:
        """Keep the generators as they are when a pass has ended, for its repetition."""
        self._usual = each.body.mean(self._increment)
        self._note_loader(each)
        ends = self._body.ends
        ends[str(each.number)] = self._generators.capture_all()
        ends.pop(str(each.number - _MOST_ENDS), None)

    def _within(self, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the part of a position for the open pass; None if it has no such part."""
        position = upgraded(state)
        for each in self._open[:-1]:
            within = position["within"]
            same_value = position["over"] == each.number and "body" in within
            if not same_value or within["pulled"] != each.done:
                return None
            position = within["body"]
        each, within = self._open[-1], position["within"]
        if position["over"] == each.number and "ended" not in within:
            return within or each.source.state_at(0)
        # The pass before had given all of its values by then.
        was_over = "ended" in within or within.get("pulled") == self._given_before
        was_over &= position["over"] == each.number - 1
        return each.source.state_at(0) if was_over else None


def _is_longer(source: Input, position: Mapping[str, Any]) -> bool:
    """Return whether an input goes on after the end that it had in the checkpoint."""
    pulled = position["pulled"]
    if "ended" not in position or position.get("length") != pulled:
        return False
    length = source.length()
    return length is not None and length > pulled
