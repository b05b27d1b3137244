"""Evaluates checkpoints in the style of TF-Slim: one, or each new one of a training run.

Each evaluation is a separate session, of kind ``eval``. The results become the event
:func:`~hookbus.hooks.hookspecs.evaluated`, and plugins write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from hookbus import (
    CallSession,
    CheckpointError,
    ChiefSessionCreator,
    Config,
    Graph,
    HookObject,
    ImpliedPlugin,
    Node,
    Scaffold,
    UsageError,
    log,
)
from hookbus.errors import ArgumentTypeError, NoGoodCheckpointError, SessionInterruptedError
from hookbus.evaluating import undisturbed
from hookbus.files import shown
from hookbus.validation import (
    UNSET,
    as_hooks,
    check_name,
    check_number,
    check_path,
    numeric,
)
from hookbus_estimator.plugins import evaluation_plugins
from hookbus_estimator.slim.checkpoints import (
    checkpoints_iterator,
    wait_for_new_checkpoint,
)
from hookbus_estimator.slim.hooks import (
    EvaluationHook,
    StopAfterNEvalsHook,
    SummaryAtEndHook,
)

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
    hooks: Iterable[HookObject] | None = None,
    logdir: str | Path | None = None,
    name: str | None = None,
    config: Config | None = None,
) -> Any:
    """Evaluate one checkpoint until a hook stops the evaluation or the input ends.

    The random generators of the process stay as they were.

    Args:
        checkpoint_path: a directory like ``runs/digits/ckpt-120``.
        graph: the graph to run; it may lack variables that the checkpoint has.
        scaffold: how to initialize the session, and the variables to restore.
        eval_ops: the fetches of each run; None runs nothing.
        feed_dict: feeds for each run.
        final_ops: nodes to fetch once, at the end. The numbers among the values are logged
            and emitted as ``evaluated``.
        final_ops_feed_dict: feeds for *final_ops*.
        hooks: hook objects.
        logdir: the directory of the training. If summary-saver is installed, it writes the
            results into ``eval`` below it. None leaves this to the active plugins.
        name: tells this evaluation from others, for example on other data; the results
            then go into ``eval_NAME``.
        config: which plugins are on; by default the process's.

    Returns:
        The values of *final_ops*, in their structure; None without *final_ops*.

    Raises:
        CheckpointError: the checkpoint is missing, is damaged, or does not fit.
        UnknownNodeError: the graph has no node of a given name.
        KeyboardInterrupt, SystemExit: a signal ended the evaluation.
        SessionInterruptedError: it did, and the program handles the signal itself.

    >>> graph = Graph()
    >>> w = graph.variable("w", 3.0)
    >>> quiet = Config(autoload=False, header=False)
    >>> evaluate_once("runs/none/ckpt-7", graph=graph, final_ops="w", config=quiet)
    Traceback (most recent call last):
        ...
    hookbus.errors.NoGoodCheckpointError: cannot restore runs/none/ckpt-7: ...
    """
    run, final = (eval_ops, feed_dict), (final_ops, final_ops_feed_dict)
    given = as_hooks(hooks, "hooks")
    evaluation = _Evaluation(graph, scaffold, run, final, given, logdir, name, config)
    if checkpoint_path is None:
        raise CheckpointError("evaluate_once() got no checkpoint: checkpoint_path is None")
    check_path("checkpoint_path", checkpoint_path)
    result = evaluation.of(checkpoint_path)
    if result.cut_short:
        raise SessionInterruptedError(
            "a signal ended evaluate_once() before its last run; there is no result"
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
    hooks: Iterable[HookObject] | None = None,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    logdir: str | Path | None = None,
    name: str | None = None,
    config: Config | None = None,
) -> Any:
    """Evaluate each new checkpoint of a directory, waiting for the next one in between.

    Each evaluation takes the newest checkpoint, and all hooks take part in it. A signal
    during an evaluation ends that evaluation and the call.

    Args:
        checkpoint_dir: the directory of the checkpoints; it does not have to exist yet.
        graph: as in :func:`evaluate_once`.
        scaffold: as there.
        eval_ops: as there.
        feed_dict: as there.
        final_ops: as there.
        final_ops_feed_dict: as there.
        eval_interval_secs: the least number of seconds from the start of one evaluation to
            the start of the next.
        hooks: as there.
        max_number_of_evaluations: the number of evaluations; None for no limit.
        timeout: how long to wait for a checkpoint, in seconds; None for ever.
        timeout_fn: called when that time is over: a true result ends the call, any other
            result waits again.
        logdir: as there.
        name: as there.
        config: as there.

    Returns:
        The values of *final_ops* for the last evaluated checkpoint, or None without one.

    Raises:
        UsageError: the number is not above 0, or *timeout_fn* is given without *timeout*.
        CheckpointError, UnknownNodeError: as :func:`evaluate_once`.

    >>> evaluate_repeatedly("no/such/directory", graph=Graph(), timeout=0) is None
    True
    """
    run, final = (eval_ops, feed_dict), (final_ops, final_ops_feed_dict)
    given = as_hooks(hooks, "hooks")
    evaluation = _Evaluation(graph, scaffold, run, final, given, logdir, name, config)
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
    hooks: Iterable[HookObject] | None = None,
    name: str | None = None,
    config: Config | None = None,
) -> Any:
    """Evaluate each new checkpoint with a fixed number of runs, and summarize it.

    Args:
        checkpoint_dir: as in :func:`evaluate_repeatedly`.
        logdir: as there.
        graph: as there.
        num_evals: the number of runs, unless the input ends before; None evaluates until
            the input ends. No flag switches it off.
        initial_op: nodes to fetch at the start of each evaluation, after the restore.
        initial_op_feed_dict: feeds for *initial_op*.
        eval_op: the fetches of each run; None runs nothing.
        eval_op_feed_dict: feeds for each run.
        final_op: nodes to fetch once, at the end.
        final_op_feed_dict: feeds for *final_op*.
        summary_op: nodes to summarize at the end; by default all scalars declared with
            ``graph.summary``, None summarizes nothing.
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
        The values of *final_op* for the last evaluated checkpoint, or None without one.

    Raises:
        UsageError, CheckpointError, UnknownNodeError: as :func:`evaluate_repeatedly`.

    >>> evaluation_loop("no/such/directory", graph=Graph(), timeout=0) is None
    True
    """
    given = as_hooks(hooks, "hooks")
    if summary_op is not None:
        wanted = None if summary_op is UNSET else summary_op
        given = (SummaryAtEndHook(logdir, wanted, summary_op_feed_dict, name), *given)
    scaffold = Scaffold(
        graph,
        local_init_op=initial_op,
        local_init_feed_dict=initial_op_feed_dict,
        saver=variables_to_restore,
    )
    run, final = (eval_op, eval_op_feed_dict), (final_op, final_op_feed_dict)
    evaluation = _Evaluation(
        graph, scaffold, run, final, given, logdir, name, config, num_evals, True
    )
    paths = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout, timeout_fn)
    return evaluation.of_each(paths, max_number_of_evaluations)


@attrs.frozen(eq=False)
class _Evaluation:
    """Evaluates one checkpoint, or several one after another.

    The attributes that are not listed are arguments of :func:`evaluate_once`.

    Attributes:
        run: the fetches and feeds of each run.
        final: the fetches and feeds at the end.
        num_evals: the number of runs; None leaves the end to the hooks and the input.
        log_progress: whether to log the runs.
    """

    graph: Graph
    scaffold: Scaffold | None
    run: tuple[Any, Feeds]
    final: tuple[Any, Feeds]
    hooks: tuple[Any, ...]
    logdir: str | Path | None
    name: str | None
    config: Config | None
    num_evals: int | None = attrs.field(default=None, validator=numeric(above=0))
    log_progress: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.graph, Graph):
            raise ArgumentTypeError(f"graph must be a Graph, given: {self.graph!r}")
        check_name("name", self.name)

    def of(self, path: str | Path) -> EvaluationHook:
        """Evaluate one checkpoint; return the hook that has the result."""
        creator = ChiefSessionCreator(
            self.graph, self.scaffold, checkpoint_filename_with_path=path
        )
        eval_ops, feed_dict = self.run
        result = EvaluationHook(
            self.num_evals, self.log_progress, eval_ops, *self.final, self.name
        )
        with (
            undisturbed(),
            CallSession(
                creator,
                "eval",
                hooks={"hooks": self.hooks},
                plugins=_writers(self.logdir, self.hooks),
                own_hooks={"hookbus.evaluation": result},
                config=self.config,
            ) as session,
        ):
            while eval_ops is not None and not session.should_stop():
                session.run(eval_ops, feed_dict)
        return result

    def of_each(self, paths: Iterator[Path], most: int | None) -> Any:
        """Evaluate checkpoints until there are no more, or *most* are evaluated."""
        check_number("max_number_of_evaluations", most)
        done, values = 0, None
        for path in paths:
            result = self._unless_removed(path)
            if result is None:
                continue
            if not result.cut_short:
                done, values = done + 1, result.values
            if done == most or result.interrupted:
                break
        return values

    def _unless_removed(self, path: Path) -> EvaluationHook | None:
        """Evaluate a checkpoint; return None if the training has removed it meanwhile."""
        try:
            return self.of(path)
        except NoGoodCheckpointError:
            if path.exists():
                raise
            log.info(
                "a checkpoint was removed before it could be evaluated", path=shown(path)
            )
            return None


def _writers(logdir: str | Path | None, hooks: Iterable[HookObject]) -> list[ImpliedPlugin]:
    """Return the plugins that write the results of an evaluation."""
    given = [hook.log_dir for hook in hooks if isinstance(hook, SummaryAtEndHook)]
    places = {str(place) for place in (logdir, *given) if place is not None}
    if len(places) > 1:
        raise UsageError(
            f"the results of an evaluation go to {' and '.join(sorted(places))}: give one "
            "directory"
        )
    return [
        plugin
        for place in places
        for plugin in evaluation_plugins(place, f"logdir={place!r}")
    ]
