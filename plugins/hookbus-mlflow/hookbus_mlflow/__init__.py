"""Sends the records of a run to MLflow: numbers, settings, checkpoints, its end."""

from __future__ import annotations

import getpass
import importlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import Checkpoints, Graph
from hookbus.errors import summary_of
from hookbus.tracking import Record, RunInfo, Tracker
from hookbus.validation import numeric
from hookbus_mlflow.names import Names

_ID = "hookbus.id"
"""The tag by which a resumed run finds its run."""
_STATUS = {"failed": "FAILED", "interrupted": "KILLED", "preempted": "KILLED"}
"""The status of a run, by the kind of the outcome; any other kind is ``FINISHED``."""
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
"""The codes of errors that come again with the same value."""
_MOST = {"metrics": 1000, "params": 100, "tags": 100}
"""How many MLflow takes in one request."""
_LONGEST = {"params": 6000, "tags": 5000}
"""How many characters a value may have. Servers before MLflow 2.21 take tags up to 5000."""
_CLIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Defaults of MLflow's client. Its own are 7 and 120: it would try a dead server for
minutes before anyone is told, and create a run twice that the server creates late."""


@attrs.define(eq=False)
class MlflowHook(Tracker):
    """Sends the records of a run to MLflow, from a thread and each value once.

    A run is one run of MLflow, however often it is resumed: that with its id as the tag
    ``hookbus.id``.

    Args:
        every_n_steps: global steps between two records of numbers.
        names: the numbers to record, by name or pattern; by default all that the program
            reports, or the loss, the accuracy and the declared summaries of a graph.
        tracking_uri: the server, like ``http://127.0.0.1:5000``, or the database, like
            ``sqlite:///mlflow.db``; by default that of ``MLFLOW_TRACKING_URI``, or MLflow's
            own default.
        experiment: the name of the experiment, which is created if needed; by default that
            of ``MLFLOW_EXPERIMENT_NAME``, or ``Default``.
        run_name: the name of a new run; by default MLflow makes one up.
        wait_secs: the longest time that the end of the training waits for records.

    Raises:
        UsageError: MLflow is missing, or is of another version.

    >>> hook = MlflowHook(every_n_steps=50, names=("loss", "val/*"), wait_secs=60.0)
    >>> hook.every_n_steps
    50
    """

    options = attrs.evolve(Tracker.options, main_setting="tracking_uri")
    distribution: ClassVar[str] = "hookbus-mlflow"
    package: ClassVar[str] = "mlflow"
    # MLflow computes 5 ms for a request, in which no step computes, and 0.2 ms for a value.
    gather_secs: ClassVar[float] = 1.0

    tracking_uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    # MLflow takes seconds to create the tables of a new database.
    wait_secs: float = attrs.field(default=30.0, validator=numeric(least=0))
    _client: Any = attrs.field(default=None, init=False)
    _run_id: str = attrs.field(default="", init=False)
    _is_running: bool = attrs.field(default=False, init=False)
    _repeats: bool = attrs.field(default=False, init=False)
    _began: int = attrs.field(default=0, init=False)
    _names: Names = attrs.field(factory=Names, init=False)
    _params: dict[str, str] = attrs.field(factory=dict, init=False)
    _history: dict[str, dict[int, list[int]]] = attrs.field(factory=dict, init=False)
    _told: set[str] = attrs.field(factory=set, init=False)

    def begin(self, graph: Graph, checkpoints: Checkpoints) -> None:
        """Import MLflow.

        It is imported here and not in the thread: a process that is forked while a thread
        imports a module, as by a loader of PyTorch, can never import that module.
        """
        super().begin(graph, checkpoints)
        for name, value in _CLIENT.items():
            os.environ.setdefault(name, value)
        tracking = importlib.import_module("mlflow.tracking")
        if not (self.tracking_uri or tracking.get_tracking_uri()).startswith("http"):
            importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
        self._began = _millis(time.time())

    def connect(self, run: RunInfo) -> None:
        """Find the run with this id, or create it."""
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient(self.tracking_uri)
        wanted = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        experiment = client.get_experiment_by_name(wanted)
        number = (
            experiment.experiment_id if experiment else client.create_experiment(wanted)
        )
        by_id, oldest = f"tags.`{_ID}` = '{run.id}'", ["attributes.start_time ASC"]
        found = client.search_runs([number], by_id, max_results=1, order_by=oldest)
        tags = {_ID: run.id, **_tags_of(run)}
        if found:
            there = found[0]
        else:
            there = client.create_run(number, self._began, tags, self.run_name)
        self._run_id, self._is_running = there.info.run_id, not found
        self._repeats = run.is_resumed and run.directory is None
        self._params, self._history = dict(there.data.params), {}
        self._names = Names.found(there.data.tags, there.data.metrics, there.data.params)
        if found:
            self._log("tags", tags)

    def send(self, records: Sequence[Record]) -> None:
        """Log metrics, hyperparameters and files as such, and all else as tags."""
        self._history = {}
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        for record in records:
            if record.kind == "params":
                self._sort(record.values, params, tags)
            elif record.kind in ("checkpoint", "rollback", "outcome"):
                tags |= _tags_in(record)
        metrics = [
            (self._names.of(name), value, _millis(record.time), record.step)
            for record in records
            for name, value in record.scalars.items()
        ]
        ends = records[-1].kind == "outcome"
        if not ends and not self._is_running:
            self._client.update_run(self._run_id, status="RUNNING")
            self._is_running = True
        self._log("params", params)
        self._params |= params
        self._log("tags", self._names.unsent | tags)
        self._names.unsent.clear()
        self._log("metrics", metrics)
        for record in records:
            if record.kind == "artifact":
                for name, path in record.values.items():
                    self._log_file(name, path)
        if ends:
            status = _STATUS.get(records[-1].values["kind"], "FINISHED")
            self._is_running = False
            self._client.set_terminated(self._run_id, status, _millis(records[-1].time))

    def _sort(
        self, values: Mapping[str, Any], params: dict[str, str], tags: dict[str, str]
    ) -> None:
        """Add new values to the params; a value that changes to the tags."""
        for name, value in _flat(values):
            sent, text = self._names.of(name), _cut(value, _LONGEST["params"])
            before = (self._params | params).get(sent)
            if before is None:
                params[sent] = text
            elif before != text:  # MLflow never changes a param
                tags[self._names.of(f"hookbus.param.{name}")] = text

    def _log(self, kind: str, values: Mapping[str, str] | Sequence[Any]) -> None:
        """Log params, tags or metrics, as many as MLflow takes in one request."""
        from mlflow.entities import Metric, Param, RunTag

        make = {"metrics": Metric, "params": Param, "tags": RunTag}[kind]
        rows = values.items() if isinstance(values, Mapping) else values
        entities = [make(*row) for row in rows]
        for start in range(0, len(entities), _MOST[kind]):
            self._log_batch(kind, entities[start : start + _MOST[kind]])

    def _log_batch(self, kind: str, entities: Sequence[Any]) -> None:
        """Log some; leave out those that MLflow refuses, which it would do for ever."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self._run_id, synchronous=True, **{kind: entities})
        except MlflowException as error:
            if error.error_code not in _REFUSED:
                raise
            if len(entities) > 1:
                half = len(entities) // 2
                self._log_batch(kind, entities[:half])
                self._log_batch(kind, entities[half:])
            elif entities[0].key not in self._told:
                self._told.add(entities[0].key)
                hookbus.log.warning(
                    "MLflow refuses a value, which is left out",
                    name=entities[0].key,
                    why=error.message.partition("\n")[0],
                    by=self.name,
                )

    def _log_file(self, name: str, path: str) -> None:
        """Log a file, which replaces one of its name; leave it out if it cannot be sent.

        An error of MLflow's server is tried again. Others are not: a place of artifacts
        that cannot be written would hold all other records.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_artifact(self._run_id, path)
        except MlflowException as error:
            if error.error_code not in _REFUSED:
                raise
            self._leave_out(name, error.message.partition("\n")[0])
        except Exception as error:
            self._leave_out(name, summary_of(error))

    def _leave_out(self, name: str, why: str) -> None:
        hookbus.log.warning(
            "a file is not sent to MLflow", name=name, why=why, by=self.name
        )

    def has(self, record: Record) -> bool:
        """Return whether MLflow has all numbers of a record."""
        return bool(record.scalars) and all(
            self._is_there(self._names.of(name), record) for name in record.scalars
        )

    def _is_there(self, name: str, record: Record) -> bool:
        if name not in self._history:
            points: dict[int, list[int]] = {}
            for metric in self._client.get_metric_history(self._run_id, name):
                points.setdefault(metric.step, []).append(metric.timestamp)
            self._history[name] = points
        times = self._history[name].get(record.step, [])
        if _millis(record.time) in times:
            return True
        # Without a journal, a resumed run repeats a step at another time.
        return self._repeats and any(each < self._began for each in times)


def _tags_of(run: RunInfo) -> dict[str, str]:
    """Return tags that tell the program; MLflow's page of a run shows those of its own."""
    program = dict(run.program)
    arguments, commit = program.pop("arguments"), program.pop("commit", None)
    tags = {
        "mlflow.source.name": arguments[0],
        "mlflow.source.type": "LOCAL",
        "hookbus.arguments": shlex.join(arguments),
        "hookbus.version": program.pop("hookbus"),
    }
    tags |= {f"hookbus.{name}": _text(value) for name, value in program.items()}
    if commit is not None:
        tags["mlflow.source.git.commit"] = commit
    with suppress(OSError, KeyError, ImportError):  # a container may know no user
        tags["mlflow.user"] = getpass.getuser()
    return {name: _cut(text, _LONGEST["tags"]) for name, text in tags.items()}


def _tags_in(record: Record) -> dict[str, str]:
    """Return a checkpoint, a roll-back or an outcome as tags."""
    if record.kind == "checkpoint":
        told = {"checkpoint": record.values["path"], "checkpoint_step": record.step}
    elif record.kind == "rollback":
        told = {"rolled_back_to": record.step}
    else:
        told = {f"outcome.{name}": value for name, value in record.values.items()}
        told |= {"outcome.step": record.step}
    return {f"hookbus.{name}": _cut(v, _LONGEST["tags"]) for name, v in told.items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield hyperparameters as text, those in dicts under names with dots."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(value)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)


def _cut(value: Any, length: int) -> str:
    text = str(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _millis(secs: float) -> int:
    return int(secs * 1000)
