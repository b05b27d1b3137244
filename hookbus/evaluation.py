"""Evaluating checkpoints in the style of slim: one of them, or each that a training saves.

Each evaluation is a session of its own, of kind ``eval``, beside whatever trains. It emits
its results as the event :func:`~hookbus.bus.hookspecs.evaluated`, and plugins write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from hookbus.backend.random_state import undisturbed
from hookbus.bus.registry import Registration
from hookbus.config.config import Config
from hookbus.errors import (
    ArgumentTypeError,
    CheckpointError,
    NoGoodCheckpointError,
    SessionInterruptedError,
    UsageError,
)
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.hooks.outcome import was_cut_short
from hookbus.logs import log, shown
from hookbus.plugin.roster import ImpliedPlugin, as_hooks
from hookbus.session.creators import ChiefSessionCreator, Scaffold
from hookbus.session.training import UNSET
from hookbus.slim.checkpoints import checkpoints_iterator, wait_for_new_checkpoint
from hookbus.slim.hooks import FinalOpsReader, StopAfterNEvalsHook, SummaryAtEndHook
from hookbus.slim.session import CallSession, evaluation_plugins
from hookbus.validation import check_name, check_number, check_path

__all__ = [
    "StopAfterNEvalsHook",
    "SummaryAtEndHook",
    "checkpoints_iterator",
    "evaluate_once",
    "evaluate_repeatedly",
    "evaluation_loop",
    "wait_for_new_checkpoint",
]

Feeds: TypeAlias = Mapping[Node | str, Any] | None
"""Node or name to value."""


def evaluate_once(
    checkpoint_path: str | Path,
    *,
    graph: Graph,
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Feeds = None,
    final_ops: Any = None,
    final_ops_feed_dict: Feeds = None,
    hooks: Iterable[Any] | None = None,
    logdir: str | Path | None = None,
    name: str | None = None,
    config: Config | None = None,
) -> Any:
    """Evaluate one checkpoint.

    It goes on until a hook stops it, :class:`StopAfterNEvalsHook` say, or the input ends.
    The random generators of the process are left where they were.

    Args:
        checkpoint_path: a directory like ``runs/digits/ckpt-120``.
        graph: what to run; it may lack variables that the checkpoint has.
        scaffold: how to initialize the session, and what of it is restored.
        eval_ops: what each run fetches; None for no run at all.
        feed_dict: feeds for each run.
        final_ops: what is fetched once, last of all. The numbers among it are logged, and
            told as ``evaluated``.
        final_ops_feed_dict: feeds for *final_ops*.
        hooks: hook objects.
        logdir: the directory of the training; what is told is written into ``eval`` below
            it by summary-saver, where it is installed. None leaves that to the plugins
            that take part.
        name: tells this evaluation from others, on other data say; with one it is written
            into ``eval_NAME``.
        config: which plugins are on; by default the process's.

    Returns:
        The values of *final_ops*, in their structure; None where there are none.

    Raises:
        CheckpointError: the checkpoint is not there, is damaged, or does not fit.
        UnknownNodeError: something names no node.
        SessionInterruptedError: a signal came before the last run.

    >>> graph = Graph()
    >>> w = graph.variable("w", 3.0)
    >>> quiet = Config(autoload=False, header=False)
    >>> evaluate_once("runs/none/ckpt-7", graph=graph, final_ops="w", config=quiet)
    Traceback (most recent call last):
        ...
    hookbus.errors.NoGoodCheckpointError: cannot restore runs/none/ckpt-7: ...
    """
    final = _Final(final_ops, final_ops_feed_dict, name)
    runs = _Runs(eval_ops, feed_dict, hooks)
    if checkpoint_path is None:
        raise CheckpointError("evaluate_once() got no checkpoint: checkpoint_path is None")
    check_path("checkpoint_path", checkpoint_path)
    result = _Evaluation(graph, scaffold, runs, final, logdir, config).of(checkpoint_path)
    if result.cut_short:
        raise SessionInterruptedError(
            "a signal ended evaluate_once(); what it has read is not that of all runs"
        )
    return result.values


def evaluate_repeatedly(
    checkpoint_dir: str | Path,
    *,
    graph: Graph,
    scaffold: Scaffold | None = None,
    eval_ops: Any = None,
    feed_dict: Feeds = None,
    final_ops: Any = None,
    final_ops_feed_dict: Feeds = None,
    eval_interval_secs: float = 60,
    hooks: Iterable[Any] | None = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    logdir: str | Path | None = None,
    name: str | None = None,
    config: Config | None = None,
) -> Any:
    """Evaluate each checkpoint that is the newest one when it is looked for.

    The hooks take part in each evaluation anew. A signal that comes in the middle of one
    ends that, and the call.

    Args:
        checkpoint_dir: where somebody saves, or will.
        graph: as in :func:`evaluate_once`, like all that is not told here.
        scaffold: as there.
        eval_ops: as there.
        feed_dict: as there.
        final_ops: as there.
        final_ops_feed_dict: as there.
        eval_interval_secs: seconds from the start of one evaluation to the next, at least.
        hooks: as there.
        max_number_of_evaluations: how many; None for no end.
        timeout: how long to wait for a checkpoint, in seconds; None for ever.
        timeout_fn: asked when that time is over: what is true ends the call, anything else
            has it wait again.
        logdir: as there.
        name: as there.
        config: as there.

    Returns:
        The values of *final_ops* for the last checkpoint that was evaluated; None if there
        was none.

    Raises:
        UsageError: the number is not above 0, or there is a *timeout_fn* without *timeout*.
        CheckpointError, UnknownNodeError: as :func:`evaluate_once`.
    """
    final = _Final(final_ops, final_ops_feed_dict, name)
    runs = _Runs(eval_ops, feed_dict, hooks)
    evaluation = _Evaluation(graph, scaffold, runs, final, logdir, config)
    paths = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    return evaluation.of_each(paths, max_number_of_evaluations)


def evaluation_loop(
    checkpoint_dir: str | Path,
    logdir: str | Path | None = None,
    *,
    graph: Graph,
    num_evals: int | None = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Feeds = None,
    eval_op: Any = None,
    eval_op_feed_dict: Feeds = None,
    final_op: Any = None,
    final_op_feed_dict: Feeds = None,
    summary_op: Any = UNSET,
    summary_op_feed_dict: Feeds = None,
    variables_to_restore: Sequence[Node | str] | None = None,
    eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    hooks: Iterable[Any] | None = None,
    name: str | None = None,
    config: Config | None = None,
) -> Any:
    """Evaluate each checkpoint with a fixed number of runs, and summarize it.

    Args:
        checkpoint_dir: as in :func:`evaluate_repeatedly`, like all that is not told here.
        logdir: as there.
        graph: as there.
        num_evals: how many runs, unless the input ends before; None for all that it has.
            Nothing switches that off.
        initial_op: fetched at the beginning of each evaluation, when it is restored.
        initial_op_feed_dict: feeds for *initial_op*.
        eval_op: what each run fetches; None for no run at all.
        eval_op_feed_dict: feeds for each run.
        final_op: what is fetched once, last of all.
        final_op_feed_dict: feeds for *final_op*.
        summary_op: what is summarized in the end; by default all scalars that are declared
            with ``graph.summary``, None for nothing.
        summary_op_feed_dict: feeds for *summary_op*.
        variables_to_restore: by default all variables that checkpoints hold.
        eval_interval_secs: as there.
        max_number_of_evaluations: as there.
        timeout: as there.
        timeout_fn: as there.
        hooks: as there.
        name: as there.
        config: as there.

    Returns:
        The values of *final_op* for the last checkpoint; None if there was none.

    Raises:
        UsageError, CheckpointError, UnknownNodeError: as :func:`evaluate_repeatedly`.
    """
    own = list(as_hooks(hooks, "hooks"))
    if summary_op is not None:
        wanted = None if summary_op is UNSET else summary_op
        own.insert(0, SummaryAtEndHook(logdir, wanted, summary_op_feed_dict, name))
    scaffold = Scaffold(
        graph,
        local_init_op=initial_op,
        local_init_feed_dict=initial_op_feed_dict,
        saver=variables_to_restore,
    )
    stop = StopAfterNEvalsHook(num_evals)
    runs = _Runs(eval_op, eval_op_feed_dict, own, stop)
    final = _Final(final_op, final_op_feed_dict, name)
    evaluation = _Evaluation(graph, scaffold, runs, final, logdir, config)
    paths = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    return evaluation.of_each(paths, max_number_of_evaluations)


def _as_hooks(hooks: Iterable[Any] | None) -> tuple[Any, ...]:
    return as_hooks(hooks, "hooks")


@attrs.frozen(eq=False)
class _Runs:
    """What is run: nodes, feeds for them, with which hooks, and how often.

    Attributes:
        ops, feed_dict, hooks: as the functions say.
        stop: the core's own part that stops the evaluation; None where hooks do.
    """

    ops: Any
    feed_dict: Feeds
    hooks: tuple[Any, ...] = attrs.field(converter=_as_hooks)
    stop: StopAfterNEvalsHook | None = None


@attrs.frozen
class _Final:
    """What is read last of all: nodes, feeds for them, and the evaluation's name."""

    ops: Any
    feed_dict: Feeds
    name: str | None

    def __attrs_post_init__(self) -> None:
        check_name("name", self.name)


@attrs.frozen
class _Result:
    """What came out of one evaluation, and whether a signal cut it short."""

    values: Any
    cut_short: bool


@attrs.frozen(eq=False)
class _Evaluation:
    """What is done with a checkpoint, or with several one after another."""

    graph: Graph
    scaffold: Scaffold | None
    runs: _Runs
    final: _Final
    logdir: str | Path | None
    config: Config | None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.graph, Graph):
            raise ArgumentTypeError(f"graph is a Graph, given: {self.graph!r}")

    def of(self, path: str | Path) -> _Result:
        """Evaluate one checkpoint."""
        runs, final = self.runs, self.final
        creator = ChiefSessionCreator(
            self.graph, self.scaffold, checkpoint_filename_with_path=path
        )
        values = FinalOpsReader(runs.ops, final.ops, final.feed_dict, final.name)
        core = {"num_evals=": runs.stop, "hookbus.evaluation": values}
        with (
            undisturbed(),
            CallSession(
                creator,
                "eval",
                hooks={"hooks": runs.hooks},
                automatic=_writers(self.logdir, runs.hooks),
                core=[
                    Registration.of_core(name, hook) for name, hook in core.items() if hook
                ],
                config=self.config,
            ) as session,
        ):
            while runs.ops is not None and not session.should_stop():
                session.run(runs.ops, runs.feed_dict)
        assert session.outcome is not None
        return _Result(values.values, was_cut_short(session.outcome.kind))

    def of_each(self, paths: Iterator[Path], most: int | None) -> Any:
        """Evaluate checkpoints until there are no more, or enough of them."""
        check_number("max_number_of_evaluations", most)
        done, values = 0, None
        for path in paths:
            result = self._of_what_may_vanish(path)
            if result is None:
                continue
            if result.cut_short:
                break
            done, values = done + 1, result.values
            if done == most:
                break
        return values

    def _of_what_may_vanish(self, path: Path) -> _Result | None:
        """Evaluate a checkpoint, unless whoever saves has removed it meanwhile."""
        try:
            return self.of(path)
        except NoGoodCheckpointError:
            if path.exists():
                raise
            log.info(
                "a checkpoint was removed before it could be evaluated", path=shown(path)
            )
            return None


def _writers(logdir: str | Path | None, hooks: Iterable[Any]) -> list[ImpliedPlugin]:
    """Return the plugins that write what an evaluation tells.

    Raises:
        UsageError: it is to be written into two directories.
    """
    given = [hook.log_dir for hook in hooks if isinstance(hook, SummaryAtEndHook)]
    places = {str(place) for place in (logdir, *given) if place is not None}
    if len(places) > 1:
        raise UsageError(
            "what an evaluation tells is written into one directory; given are "
            f"{' and '.join(sorted(places))}"
        )
    return [
        attrs.evolve(plugin, why=f"logdir={place!r}")
        for place in places
        for plugin in evaluation_plugins(Path(place))
    ]
