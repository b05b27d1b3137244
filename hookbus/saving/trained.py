"""Reads trained objects out of checkpoints, for programs without a session.

Averages of weights are those that a hook keeps in its state: a dict under the key
``averages`` that has a value for each variable, by name, like that of the plugin
weight-average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hookbus.checkpoint.reader import Restored, read_source, tracked_by_ranks
from hookbus.errors import (
    ArgumentTypeError,
    CheckpointMismatchError,
    GraphError,
    UsageError,
    did_you_mean,
    spelled,
)
from hookbus.library.lookup import library_name, library_named
from hookbus.logs import shown
from hookbus.tracked.forms import with_first_forms
from hookbus.tracked.leaves import fitted, leaves, parts_of
from hookbus.tracked.objects import TrackedStates
from hookbus.tracked.trees import faults_of, made_like

_MOST_NAMES = 8
"""The most names that a message lists."""


def load_tracked(
    path: str | Path, name: str, averages: bool = False, like: Any = None
) -> Any:
    """Return the state of one tracked object in a checkpoint.

    The call only reads: it takes no lock, and neither repairs nor renames anything.
    Another process may save meanwhile.

    Args:
        path: a checkpoint, like ``runs/digits/ckpt-120``, or a directory of checkpoints,
            of which the newest good one counts.
        name: the name under which ``session.track`` got the object.
        averages: whether to return the averages that the plugin weight-average has saved
            in the same checkpoint, in place of the weights. A value without an average,
            like a counter, is the saved one. Any hook can save averages: its state has a
            dict ``averages`` with a value for each variable.
        like: a value of the form that the program tracks or holds, like a fresh
            ``TrainState`` of flax. The result is one with the saved values, each where that
            of *like* is, on the same devices. *like* stays as it is, unless it can only
            change in place, like a module of flax.nnx. None returns plain data.

    Returns:
        Without *like* the saved state as plain data: for a module of PyTorch its state dict
        with tensors on the CPU; for an array, dict or list an equal one, and for a pytree
        one of dicts; for any other object the result of its ``state_dict``, or of its
        function ``get``. It belongs to the caller, who may change it. If each process has
        saved its own state, it is that of the rank 0; the parts of a model that FSDP2
        shards are put together.

    Raises:
        UsageError: the checkpoint has no object of this name, or no averages of it; or the
            plugin of a library is not installed.
        CheckpointMismatchError: the object has another structure, shape or dtype than
            *like*.
        NoGoodCheckpointError: the checkpoint is damaged, or each one in the directory is.
        CheckpointError: there is no checkpoint, or it cannot be read.

    >>> import tempfile
    >>> import numpy as np
    >>> from hookbus import Config, MonitoredTrainingSession
    >>> config = Config(autoload=False)
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     with MonitoredTrainingSession(checkpoint_dir=runs, config=config) as session:
    ...         w = session.track(w=np.zeros(2))
    ...         with session.step():
    ...             w += 1.5
    ...     load_tracked(runs, "w")
    array([1.5, 1.5])
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"the name of a tracked object is a str, given: {spelled(name)}"
        )
    restored = read_source(path)
    state = tracked_in(restored, name, averages)
    if like is None:
        return state
    forms = TrackedStates.of(restored.state).forms.get(name, {})
    faults = [*faults_of(name, like, with_first_forms(name, state, forms))]
    if faults:
        raise CheckpointMismatchError(
            f"the checkpoint {shown(restored.path)} does not fit like=: {'; '.join(faults)}"
        )
    return made_like(like, state)


def tracked_in(restored: Restored, name: str, averages: bool = False) -> Any:
    """Return the state of one tracked object, as :func:`load_tracked` does.

    Raises:
        UsageError: there is no object of this name, or there are no averages of it.
        NoGoodCheckpointError: the part of a rank is damaged.
    """
    tracked = restored.state.get("tracked", {})
    if name not in tracked:
        raise _not_tracked(restored, name, tracked)
    states = tracked_by_ranks(restored, name)
    libraries = {library_name(value) for _, value in leaves(name, states[0])} - {None}
    state = states[0]
    for library in sorted(map(str, libraries)):
        state = library_named(library).joined(name, states)
    return _averaged(restored, name, state) if averages else state


def variables_in(restored: Restored, averages: bool = False) -> Mapping[str, Any]:
    """Return the variables of a graph by name, or their averages.

    Raises:
        UsageError: there are no variables, or there are no averages of them.
    """
    variables: Mapping[str, Any] = restored.state["variables"]
    if not variables:
        tracked = restored.state.get("tracked", {})
        raise UsageError(
            f"the checkpoint {shown(restored.path)} has no variables of a graph; it has "
            f"the tracked objects {_listed(tracked)}: name one of them with --tracked"
        )
    return _averaged(restored, "", variables) if averages else variables


def _not_tracked(restored: Restored, name: str, tracked: Iterable[str]) -> UsageError:
    variables = restored.state["variables"]
    has = f"the tracked objects {_listed(tracked)}"
    if not tracked and variables:
        has = f"the variables {_listed(variables)} of a graph (hookbus export --variables)"
    return UsageError(
        f"the checkpoint {shown(restored.path)} has no tracked object {spelled(name)}; it "
        f"has {has}{did_you_mean(name, tracked)}"
    )


def _averaged(restored: Restored, name: str, state: Any) -> Any:
    """Return a state with averages in place of the values that have one.

    Raises:
        UsageError: no hook has saved averages of them, or several have.
        CheckpointMismatchError: an average has another form than its value.
    """
    where, what = f"the checkpoint {shown(restored.path)}", f"of {name!r}"
    if not name:
        what = "of the variables"
    saved = _saved_averages(restored)
    if not saved:
        raise UsageError(
            f"{where} has no averages: no plugin like weight-average was on when it was "
            "saved (hookbus run -p weight-average)"
        )
    if not any(saved.values()):
        raise UsageError(
            f"{where} has no averages yet: {' and '.join(saved)} had averaged nothing when "
            "it was saved"
        )
    known = {full for full, _ in leaves(name, state)} if name else {*state}
    fitting = {hook: each for hook, each in saved.items() if known & each.keys()}
    if len(fitting) > 1:
        raise UsageError(
            f"{where} has several averages {what}: those of {' and '.join(fitting)}; save "
            "it with one of these plugins"
        )
    for averages in fitting.values():
        return _replaced(name, state, averages)
    others = sorted({full for each in saved.values() for full in each})
    raise UsageError(f"{where} has no averages {what}; it has those of {_listed(others)}")


def _saved_averages(restored: Restored) -> dict[str, Mapping[str, Any]]:
    """Return the averages that hooks have saved, by the names of hook and variable."""
    found = {}
    for hook, state in restored.state.get("hooks", {}).items():
        averages = state.get("averages") if isinstance(state, Mapping) else None
        if isinstance(averages, Mapping):
            found[hook] = averages
    return found


def _replaced(name: str, state: Any, averages: Mapping[str, Any]) -> Any:
    """Return a state with averages by the names that :func:`leaves` gives."""
    if isinstance(state, Mapping | list | tuple):
        prefix = f"{name}." if name else ""
        parts = {k: _replaced(f"{prefix}{k}", v, averages) for k, v in parts_of(state)}
        if isinstance(state, Mapping):
            return parts
        return type(state)(parts.values())
    if name not in averages:
        return state
    average = averages[name]
    shapes = [tuple(getattr(value, "shape", ())) for value in (average, state)]
    try:
        if shapes[0] == shapes[1]:
            return fitted(name, _narrowed(average, state), state)
        why = f"it has the shape {shapes[0]}, and {name!r} has {shapes[1]}"
    except GraphError as error:
        why = str(error)
    raise CheckpointMismatchError(f"the average of {name!r} does not fit: {why}")


def _narrowed(average: Any, state: Any) -> Any:
    """Return an average of float32 in a dtype like bfloat16, which is no float to NumPy."""
    kinds = [getattr(getattr(v, "dtype", None), "kind", None) for v in (average, state)]
    is_narrower = kinds == ["f", "V"] and "float" in str(state.dtype)
    return average.astype(state.dtype) if is_narrower else average


def _listed(names: Iterable[str]) -> str:
    """Return names for a message, of many only the first ones."""
    every = [*names]
    more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    return f"{', '.join(map(repr, every[:_MOST_NAMES])) or 'none'}{more}"
