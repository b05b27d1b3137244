"""Provides the sessions of ``tf.compat.v1.train`` with TensorFlow's arguments, on hookbus.

A program that changes the import gets the plugins, flags, exit codes and checkpoints of
hookbus. Its graph, its loop and its hooks stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import tensorflow as tf

import hookbus
from hookbus import Config, UsageError
from hookbus.backend import RunMetadata
from hookbus.errors import ArgumentTypeError
from hookbus_tensorflow.context import record_of, to_hookbus
from hookbus_tensorflow.errors import with_meaning
from hookbus_tensorflow.graph import TFGraph
from hookbus_tensorflow.hooked import HookedSession as HookedSession
from hookbus_tensorflow.hooks import fetches_of

_train = tf.compat.v1.train
_USE_DEFAULT: Any = object()


@attrs.frozen(eq=False)
class ChiefSessionCreator:
    """Creates the session of a process that initializes and restores the model.

    Args:
        scaffold, master, config: as for TensorFlow's ``ChiefSessionCreator``.
        checkpoint_dir: the directory to restore from, if it contains a checkpoint of
            hookbus, or else one of TensorFlow.
        checkpoint_filename_with_path: the checkpoint to restore instead.
    """

    scaffold: Any = None
    master: str = ""
    config: Any = None
    checkpoint_dir: str | None = None
    checkpoint_filename_with_path: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.checkpoint_dir and self.checkpoint_filename_with_path:
            raise UsageError(
                "Can not provide both checkpoint_dir and checkpoint_filename_with_path."
            )

    @property
    def file_of_hookbus(self) -> str | None:
        """The checkpoint to restore, if it is one of hookbus, which is a folder."""
        file = self.checkpoint_filename_with_path
        return file if file and Path(file).is_dir() else None

    def new_graph(self) -> TFGraph:
        """Return the default graph as a graph of hookbus."""
        restored, directory = self.checkpoint_filename_with_path, self.checkpoint_dir
        if self.file_of_hookbus is not None:
            restored = None
        elif directory and hookbus.latest_checkpoint(directory) is None:
            restored = _train.latest_checkpoint(directory)
        return TFGraph(
            scaffold=self.scaffold,
            session_config=self.config,
            master=self.master,
            restore_from=restored,
            feeds_all=False,
        )


@attrs.frozen(eq=False)
class WorkerSessionCreator:
    """Creates the session of a process that waits until its chief has made the model ready.

    Args:
        scaffold, master, config, max_wait_secs: as for TensorFlow's
            ``WorkerSessionCreator``.
    """

    scaffold: Any = None
    master: str = ""
    config: Any = None
    max_wait_secs: float = 1800

    checkpoint_dir: None = attrs.field(default=None, init=False)
    file_of_hookbus: None = attrs.field(default=None, init=False)

    def new_graph(self) -> TFGraph:
        """Return the default graph as a graph of hookbus."""
        scaffold = self.scaffold or _train.Scaffold()
        creator = _train.WorkerSessionCreator(
            scaffold, self.master, self.config, self.max_wait_secs
        )
        return TFGraph(scaffold=scaffold, session_creator=creator, feeds_all=False)


@attrs.frozen(eq=False)
class StepContext:
    """The session, as a step function sees it.

    Attributes:
        session: the ``tf.compat.v1.Session``; runs of it reach no hook.
        run_with_hooks: runs part of the graph like the session's ``run``.
        request_stop: leaves the step function, and the session's block with it.
    """

    session: Any
    run_with_hooks: Callable[..., Any]
    request_stop: Callable[[], None]


class _TFMethods(hookbus.MonitoredSession):
    """The methods that take and return TensorFlow's objects."""

    _tf: TFGraph

    @property
    def graph(self) -> Any:
        """The ``tf.Graph``; None after close, as in TensorFlow."""
        return None if super().graph is None else self._tf.tf_graph

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
        *,
        kind: Any = None,
    ) -> Any:
        """Run part of the graph once, and call the hooks before and after.

        Args:
            fetches: as in ``tf.compat.v1.Session.run``.
            feed_dict: as there.
            options: as there.
            run_metadata: as there.
            kind: as in :meth:`hookbus.MonitoredSession.run`.
        """
        run = _converted(super().run, self._tf)
        return run(fetches, feed_dict, options, run_metadata, kind)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Close the session; an end of input that the program has raised ends it well."""
        if kind is tf.errors.OutOfRangeError:
            error = with_meaning(error)
            kind = type(error)
        return super().__exit__(kind, error, trace)

    def run_step_fn(self, step_fn: Callable[[Any], Any]) -> Any:
        """Call a function that runs the session, with or without hooks.

        Args:
            step_fn: takes ``step_context``, a :class:`StepContext`, or ``self`` and
                ``step_context``.
        """

        @functools.wraps(step_fn)  # its parameters are checked
        def call(step_context: Any) -> Any:
            return step_fn(
                StepContext(
                    step_context.session.tf_session,
                    _converted(step_context.run_with_hooks, self._tf),
                    step_context.request_stop,
                )
            )

        return super().run_step_fn(call)


class MonitoredSession(_TFMethods):
    """TensorFlow's ``MonitoredSession`` on hookbus.

    Args:
        session_creator: one of this module, or any ``SessionCreator`` of TensorFlow, which
            then does its own restoring; by default a
            :class:`ChiefSessionCreator`.
        hooks: hooks of TensorFlow and of hookbus, called after all plugins.
        stop_grace_period_secs: the seconds to wait at the end for threads.
        settings: the ``config``, ``kind``, ``recovery`` and ``exit_on_signal`` of
            :class:`hookbus.MonitoredSession`; ``config`` is given as ``hookbus_config``.
    """

    def __init__(
        self,
        session_creator: Any = None,
        hooks: Iterable[Any] | None = None,
        stop_grace_period_secs: float = 120,
        *,
        hookbus_config: Config | None = None,
        **settings: Any,
    ) -> None:
        given = ChiefSessionCreator() if session_creator is None else session_creator
        directory = file = None
        if isinstance(given, ChiefSessionCreator | WorkerSessionCreator):
            self._tf = given.new_graph()
            directory, file = given.checkpoint_dir, given.file_of_hookbus
        elif hasattr(given, "create_session"):
            scaffold = getattr(given, "_scaffold", None)
            self._tf = TFGraph(scaffold=scaffold, session_creator=given, feeds_all=False)
        else:
            raise ArgumentTypeError(
                "session_creator takes a SessionCreator of TensorFlow, not a "
                f"{type(given).__name__}"
            )
        creator = hookbus.ChiefSessionCreator(
            self._tf, checkpoint_dir=directory, checkpoint_filename_with_path=file
        )
        super().__init__(
            session_creator=creator,
            hooks=hooks,
            stop_grace_period_secs=stop_grace_period_secs,
            config=hookbus_config,
            **settings,
        )


class SingularMonitoredSession(_TFMethods, hookbus.SingularMonitoredSession):
    """TensorFlow's ``SingularMonitoredSession`` on hookbus.

    Args:
        hooks: hooks of TensorFlow and of hookbus, called after all plugins.
        scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path: as for
            :class:`ChiefSessionCreator`.
        stop_grace_period_secs: the seconds to wait at the end for threads.
        settings: the ``config``, ``kind`` and ``exit_on_signal`` of
            :class:`hookbus.SingularMonitoredSession`; ``config`` is given as
            ``hookbus_config``.
    """

    def __init__(
        self,
        hooks: Iterable[Any] | None = None,
        scaffold: Any = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
        *,
        hookbus_config: Config | None = None,
        **settings: Any,
    ) -> None:
        source = ChiefSessionCreator(
            scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path
        )
        self._tf = source.new_graph()
        hookbus.SingularMonitoredSession.__init__(
            self,
            self._tf,
            hooks,
            checkpoint_dir=checkpoint_dir,
            stop_grace_period_secs=stop_grace_period_secs,
            checkpoint_filename_with_path=source.file_of_hookbus,
            config=hookbus_config,
            **settings,
        )

    def raw_session(self) -> Any:
        """Return the ``tf.compat.v1.Session``; None after close, as in TensorFlow."""
        session: Any = super().raw_session()
        return None if session is None else session.tf_session


class MonitoredTrainingSession(_TFMethods, hookbus.MonitoredTrainingSession):
    """TensorFlow's ``MonitoredTrainingSession`` on hookbus.

    The plugins checkpoint-saver, summary-saver and step-counter take the places of the
    hooks that TensorFlow adds: a checkpoint is one of hookbus, and flags reach them.

    Args:
        master, is_chief, scaffold, config, max_wait_secs: as in TensorFlow.
        checkpoint_dir: the directory to save into, and to restore from: the newest
            checkpoint of hookbus, or else that of TensorFlow.
        hooks, chief_only_hooks: hooks of TensorFlow and of hookbus.
        save_checkpoint_secs, save_checkpoint_steps, save_summaries_secs,
        save_summaries_steps, summary_dir, log_step_count_steps, stop_grace_period_secs: as
            in :class:`hookbus.MonitoredTrainingSession`.
        save_graph_def: whether to write ``graph.pbtxt`` into *checkpoint_dir*.
        settings: the ``config``, ``recovery`` and ``exit_on_signal`` of
            :class:`hookbus.MonitoredTrainingSession`; ``config`` is given as
            ``hookbus_config``.
    """

    def __init__(
        self,
        master: str = "",
        is_chief: bool = True,
        checkpoint_dir: str | None = None,
        scaffold: Any = None,
        hooks: Iterable[Any] | None = None,
        chief_only_hooks: Iterable[Any] | None = None,
        save_checkpoint_secs: float | None = _USE_DEFAULT,
        save_summaries_steps: int | None = _USE_DEFAULT,
        save_summaries_secs: float | None = _USE_DEFAULT,
        config: Any = None,
        stop_grace_period_secs: float = 120,
        log_step_count_steps: int | None = 100,
        max_wait_secs: float = 7200,
        save_checkpoint_steps: int | None = _USE_DEFAULT,
        summary_dir: str | None = None,
        save_graph_def: bool = True,
        *,
        hookbus_config: Config | None = None,
        **settings: Any,
    ) -> None:
        source = (
            ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
            if is_chief
            else WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        )
        graph = self._tf = source.new_graph()
        periods = {
            "save_checkpoint_secs": save_checkpoint_secs,
            "save_checkpoint_steps": save_checkpoint_steps,
            "save_summaries_secs": save_summaries_secs,
            "save_summaries_steps": save_summaries_steps,
        }
        given = {name: each for name, each in periods.items() if each is not _USE_DEFAULT}
        hookbus.MonitoredTrainingSession.__init__(
            self,
            graph,
            is_chief=is_chief,
            checkpoint_dir=checkpoint_dir,
            hooks=hooks,
            chief_only_hooks=chief_only_hooks,
            summary_dir=summary_dir,
            log_step_count_steps=log_step_count_steps,
            stop_grace_period_secs=stop_grace_period_secs,
            config=hookbus_config,
            **given,  # type: ignore[arg-type]
            **settings,
        )
        if is_chief and checkpoint_dir and save_graph_def:
            definition = graph.tf_graph.as_graph_def(add_shapes=True)
            tf.io.write_graph(definition, str(checkpoint_dir), "graph.pbtxt")


def _converted(run: Callable[..., Any], graph: TFGraph) -> Callable[..., Any]:
    """Return a ``run`` that takes the arguments of TensorFlow's ``run``."""

    def call(
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
        kind: Any = None,
    ) -> Any:
        record = None if run_metadata is None else RunMetadata()
        values = run(
            fetches_of(fetches, graph), feed_dict, to_hookbus(options), record, kind=kind
        )
        if record is not None:
            run_metadata.CopyFrom(record_of(record))
        return values

    return call
