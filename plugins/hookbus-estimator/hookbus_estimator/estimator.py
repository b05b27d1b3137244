"""Defines the Estimator, which trains, evaluates and predicts with a model function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hookbus import (
    CallSession,
    CheckpointError,
    CheckpointSaverListener,
    ChiefSessionCreator,
    Graph,
    HookObject,
    ImpliedPlugin,
    NewestIn,
    Node,
    Scaffold,
    Session,
    UsageError,
    WorkerSessionCreator,
    latest_checkpoint,
    load_variables,
    log,
    resumes,
)
from hookbus.errors import (
    ArgumentTypeError,
    SessionInterruptedError,
    UnknownNodeError,
    did_you_mean,
)
from hookbus.evaluating import undisturbed
from hookbus.validation import as_hooks, check_directory, check_name, check_number
from hookbus_estimator.hooks import (
    EvaluateMetricsHook,
    KeepInputPositionHook,
    StopTrainingHook,
    own_hooks,
)
from hookbus_estimator.metrics import mean
from hookbus_estimator.model_fn import (
    EstimatorSpec,
    ModeKeys,
    ModelFn,
    check_ends,
    check_listeners,
    number_of,
)
from hookbus_estimator.plugins import evaluation_plugins, training_plugins
from hookbus_estimator.predictions import (
    choose_predictions,
    each_prediction,
    rows_of,
    whole_batch,
)
from hookbus_estimator.run_config import RunConfig, with_directory


class Estimator:
    """Trains, evaluates and predicts with a model that a function builds.

    Each call builds a new graph and opens a new session; only the files in *model_dir*
    last. :meth:`train` switches on checkpoint-saver, summary-saver, step-counter,
    logging-tensor and nan-tensor; :meth:`evaluate` switches on summary-saver. Flags take
    precedence.

    Args:
        model_fn: adds ops to the graph of the nodes that it gets, and returns an
            :class:`EstimatorSpec`. It takes any of ``features``, ``labels``, ``mode``,
            ``params`` and ``config``. ``features`` is a node, or a mapping from key to node
            if the input gives dicts; ``features.graph`` is the graph.
        model_dir: the directory for checkpoints and summaries; by default that of *config*,
            or a new temporary directory.
        config: how often to save and log.
        params: passed on to *model_fn* and *input_fn*.
        warm_start_from: a checkpoint, or a directory of them, whose variables the model
            starts with if *model_dir* has no checkpoint yet.
        graph: makes the graphs: the class of another backend's graphs, for example.

    Raises:
        UsageError: two directories are given, or *model_fn* has an unknown parameter.
        ArgumentTypeError: an argument has the wrong type.

    >>> from tempfile import TemporaryDirectory
    >>> def model_fn(features, mode):
    ...     graph = features.graph
    ...     w = graph.variable("w", 0.0)
    ...     loss = graph.op(lambda x, w: abs(x - w), name="loss", reads={"x": features})
    ...     train = graph.train_op(lambda w: w + 0.5, name="train", updates="w")
    ...     return EstimatorSpec(mode, features, loss, train)
    >>> with TemporaryDirectory() as directory:
    ...     estimator = Estimator(model_fn, directory).train(lambda: [1.0] * 8, steps=4)
    ...     estimator.get_variable_value("w"), estimator.evaluate(lambda: [1.0])["loss"]
    (2.0, 1.0)
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: str | Path | None = None,
        *,
        graph: Callable[[], Graph] = Graph,
    ) -> None:
        if config is not None and not isinstance(config, RunConfig):
            raise ArgumentTypeError(f"config must be a RunConfig, given: {config!r}")
        if not callable(graph):
            raise ArgumentTypeError(f"graph must be a class of graphs, given: {graph!r}")
        self._model, self._warm_start_from = ModelFn(model_fn, graph), warm_start_from
        self._config = with_directory(config or RunConfig(), model_dir)
        self._params = copy.deepcopy(_checked(params))

    @property
    def model_dir(self) -> str:
        """The directory for checkpoints and summaries."""
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """The settings, a copy."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the model, a copy."""
        return copy.deepcopy(self._params)

    def train(
        self,
        input_fn: Callable[..., Iterable[Any]],
        hooks: Iterable[HookObject] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Train from the newest checkpoint on, until the input ends or a hook stops.

        After a kill, the same call continues the training: with its weights, its position
        in the input and, for *steps*, the remaining steps. A call that returned is not
        continued.

        Args:
            input_fn: returns an iterable of batches: features or pairs (features, labels),
                each an array or a dict of arrays. It takes any of ``mode``, ``params`` and
                ``config``.
            hooks: hook objects.
            steps: how many steps to do.
            max_steps: the global step to stop at; if the model has reached it, the call
                does nothing.
            saving_listeners: listeners that are called around each save.

        Returns:
            The estimator.

        Raises:
            UsageError: both numbers are given, or one is not above 0; the input has no
                batch; *model_fn* does not return a fitting :class:`EstimatorSpec`.
        """
        if steps is not None and max_steps is not None:
            raise UsageError("Can not provide both steps and max_steps.")
        check_number("steps", steps)
        check_number("max_steps", max_steps)
        stop_hook = StopTrainingHook(max_steps, steps)
        self.train_until(stop_hook, input_fn, hooks, saving_listeners)
        return self

    def train_until(
        self,
        stop_hook: StopTrainingHook,
        input_fn: Callable[..., Iterable[Any]],
        hooks: Iterable[HookObject] | None,
        saving_listeners: Iterable[CheckpointSaverListener] | None,
    ) -> None:
        """Train until *stop_hook* stops, for :meth:`train` and ``train_and_evaluate``.

        The hook also knows where the training began and how it ended. The other arguments
        are those of :meth:`train`.
        """
        newest = latest_checkpoint(self.model_dir)
        if newest is not None and stop_hook.is_done(newest):
            step, target = newest.global_step, stop_hook.last_step
            log.info("nothing to train", step=step, max_steps=target)
            return
        given = as_hooks(hooks, "hooks")
        listeners = check_listeners(saving_listeners)
        graph, spec = self._build(input_fn, ModeKeys.TRAIN)
        config, directory = self._config, Path(self.model_dir)
        first = spec.training_chief_hooks if config.is_chief else ()
        every = (*given, *spec.training_hooks, *first)
        session = CallSession(
            self._creator(graph, spec),
            "train",
            hooks={"hooks": given, "training_hooks": spec.training_hooks},
            first_hooks={"training_chief_hooks": first},
            plugins=training_plugins(spec, config, directory, listeners, every),
            own_hooks=own_hooks("Estimator.train()", stop_hook, spec),
            is_chief=config.is_chief,
            exit_on_signal=config.exit_on_signal,
        )
        loss, fetches = None, [spec.train_op, spec.loss]
        with session:
            while not session.should_stop():
                _, loss = session.run(fetches)
        log.info("loss for final step", loss=None if loss is None else number_of(loss))

    def evaluate(
        self,
        input_fn: Callable[..., Iterable[Any]],
        steps: int | None = None,
        hooks: Iterable[HookObject] | None = None,
        checkpoint_path: str | Path | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint.

        The random generators of the process stay as they were.

        Args:
            input_fn: as in :meth:`train`.
            steps: the number of batches; by default all.
            hooks: hook objects.
            checkpoint_path: the checkpoint, a directory like ``model/ckpt-500``; by
                default the newest one in *model_dir*.
            name: tells this evaluation from others, for example on other data.

        Returns:
            Metric to value: the metrics of the spec, ``loss`` (its mean over the batches)
            and ``global_step``. Numbers are floats.

        Raises:
            UsageError: *steps* is not above 0, or is missing although no metric reads the
                input; the input has no batch.
            CheckpointError: there is no checkpoint.
            SessionInterruptedError: a signal arrived before the last batch.
        """
        check_number("steps", steps)
        check_name("name", name)
        path = self._path("evaluate", checkpoint_path)
        plugins = evaluation_plugins(self.model_dir)
        metrics = self.evaluate_at(path, input_fn, steps, hooks, name, plugins)
        if metrics.cut_short:
            raise SessionInterruptedError(
                f"a signal ended evaluate() after {metrics.done} batches; there is no "
                "result, because metrics of a part are not those of the whole"
            )
        return metrics.result

    def evaluate_at(
        self,
        path: str | Path | NewestIn,
        input_fn: Callable[..., Iterable[Any]],
        steps: int | None,
        hooks: Iterable[HookObject] | None,
        name: str | None,
        plugins: Sequence[ImpliedPlugin] = (),
        around: Callable[[Session], AbstractContextManager[Any]] = nullcontext,
    ) -> EvaluateMetricsHook:
        """Evaluate a checkpoint, for :meth:`evaluate` and ``train_and_evaluate``.

        The plugins in *plugins* take part; without any, no result is written. *around*
        returns the block in which a session is evaluated. The other arguments are those of
        :meth:`evaluate`.

        Returns:
            The hook that has the metrics and knows how the evaluation ended.
        """
        given = as_hooks(hooks, "hooks")
        with undisturbed():
            creator, spec = self._restoring(path, input_fn, ModeKeys.EVAL)
            assert isinstance(spec.loss, Node)
            metrics = {**spec.eval_metric_ops, "loss": mean(spec.loss, name="loss/mean")}
            updates = [metric.update for metric in metrics.values()]
            metrics_hook = EvaluateMetricsHook(
                steps,
                log_progress=steps is not None,
                eval_ops=updates,
                final_ops={key: metrics[key].value for key in sorted(metrics)},
                name=name,
                around=around,
            )
            if steps is None:
                check_ends("evaluate() without steps", creator.graph, updates)
            with CallSession(
                creator,
                "eval",
                hooks={"hooks": given, "evaluation_hooks": spec.evaluation_hooks},
                plugins=plugins,
                own_hooks=own_hooks("Estimator.evaluate()", metrics_hook, spec),
                exit_on_signal=self._config.exit_on_signal,
            ) as session:
                while not session.should_stop():
                    session.run(updates)
        return metrics_hook

    def predict(
        self,
        input_fn: Callable[..., Iterable[Any]],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Iterable[HookObject] | None = None,
        checkpoint_path: str | Path | None = None,
        yield_single_examples: bool = True,
    ) -> Generator[Any, None, None]:
        """Yield predictions; nothing happens before the first one is requested.

        The session stays open in between, and ends with the input or when the generator
        is closed. The random generators of the process stay as they were.

        Args:
            input_fn: as in :meth:`train`; labels are ignored.
            predict_keys: which predictions to yield, if they are a dict; by default all.
            hooks: hook objects.
            checkpoint_path: as in :meth:`evaluate`.
            yield_single_examples: whether to yield a prediction for each example, or one
                for each batch.

        Yields:
            A row of the predictions, or a dict of rows.

        Raises:
            UsageError: a key is unknown, no prediction reads the input, or the predictions
                of a batch do not have the same number of rows.
            CheckpointError: there is no checkpoint.
            SessionInterruptedError: a signal arrived before the last batch.
        """
        batches = self._predictions(input_fn, predict_keys, hooks, checkpoint_path)
        yield from each_prediction(
            batches, rows_of if yield_single_examples else whole_batch
        )

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory for the summaries of an evaluation.

        Args:
            name: the name of the evaluation; None for the one without a name.
        """
        return str(Path(self.model_dir) / (f"eval_{name}" if name else "eval"))

    def latest_checkpoint(self) -> str | None:
        """Return the newest good checkpoint, a directory, or None."""
        found = latest_checkpoint(self.model_dir)
        return None if found is None else str(found.path)

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the newest checkpoint, sorted.

        Raises:
            CheckpointError: there is no checkpoint.
        """
        return sorted(load_variables(self.model_dir))

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a variable in the newest checkpoint.

        Args:
            name: the variable's name in the graph.

        Raises:
            CheckpointError: there is no checkpoint.
            UnknownNodeError: the checkpoint has no such variable.
        """
        variables = load_variables(self.model_dir)
        if name not in variables:
            raise UnknownNodeError(
                f"the checkpoint has no variable {name!r}"
                f"{did_you_mean(name, variables) or f'; it has {sorted(variables)}'}"
            )
        return variables[name]

    def _creator(
        self, graph: Graph, spec: EstimatorSpec
    ) -> ChiefSessionCreator | WorkerSessionCreator:
        config, scaffold = self._config, spec.scaffold
        if not config.is_chief:
            wait = config.session_creation_timeout_secs
            return WorkerSessionCreator(graph, scaffold, wait)
        if self._warm_start_from is not None:
            scaffold = (scaffold or Scaffold(graph)).warm_started(self._warm_start_from)
        return ChiefSessionCreator(graph, scaffold, checkpoint_dir=self.model_dir)

    def _predictions(
        self,
        input_fn: Callable[..., Iterable[Any]],
        keys: Sequence[str] | str | None,
        hooks: Iterable[HookObject] | None,
        checkpoint_path: str | Path | None,
    ) -> Generator[Any, None, None]:
        """Yield the predictions of each batch."""
        given, path = as_hooks(hooks, "hooks"), self._path("predict", checkpoint_path)
        creator, spec = self._restoring(path, input_fn, ModeKeys.PREDICT)
        wanted = choose_predictions(spec.predictions, keys)
        check_ends("predict()", creator.graph, wanted)
        with CallSession(
            creator,
            "predict",
            hooks={"hooks": given, "prediction_hooks": spec.prediction_hooks},
            own_hooks={"Estimator.predict()": KeepInputPositionHook()},
            exit_on_signal=self._config.exit_on_signal,
        ) as session:
            while not session.should_stop():
                yield session.run(wanted)
        assert session.outcome is not None
        if resumes(session.outcome.kind):
            raise SessionInterruptedError(
                "a signal ended predict() before the end of its input"
            )

    def _path(self, call: str, checkpoint_path: str | Path | None) -> str | Path | NewestIn:
        """Return the given checkpoint, or the newest one.

        The newest one is chosen when it is read. Until then the model is built, and a
        training run in another process may remove the checkpoint that was the newest.
        """
        check_directory("checkpoint_path", checkpoint_path)
        if checkpoint_path:
            return checkpoint_path
        if self.latest_checkpoint() is None:
            raise CheckpointError(
                f"{call}() found no checkpoint in model_dir={self.model_dir!r}: train "
                "first, or give checkpoint_path="
            )
        return NewestIn(self.model_dir)

    def _restoring(
        self, path: str | Path | NewestIn, input_fn: Callable[..., Iterable[Any]], mode: str
    ) -> tuple[ChiefSessionCreator, EstimatorSpec]:
        """Build a graph, and a creator of sessions that restores a checkpoint."""
        graph, spec = self._build(input_fn, mode)
        creator = ChiefSessionCreator(
            graph, spec.scaffold, checkpoint_filename_with_path=path
        )
        return creator, spec

    def _build(
        self, input_fn: Callable[..., Iterable[Any]], mode: str
    ) -> tuple[Graph, EstimatorSpec]:
        given = {"params": self.params, "config": self.config}
        return self._model.build(input_fn, mode, given)


def _checked(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the parameters of a model; an empty dict for None."""
    if params is not None and not isinstance(params, Mapping):
        raise ArgumentTypeError(f"params must be a dict, given: {params!r}")
    return dict(params or {})
