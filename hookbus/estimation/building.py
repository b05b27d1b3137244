"""How a model function is called, and what is wrong with what it returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from hookbus.arguments import names_taken
from hookbus.errors import UnknownNodeError, UsageError
from hookbus.estimation.batches import Batches
from hookbus.estimation.spec import EstimatorSpec, ModeKeys
from hookbus.graph import Graph
from hookbus.program import inputs_of

_MODEL_FN_TAKES = ("features", "labels", "mode", "params", "config")
_INPUT_FN_TAKES = ("mode", "params", "config")


@attrs.frozen(eq=False)
class Model:
    """A model function.

    Args:
        fn: the function.

    Raises:
        ArgumentTypeError: it is none.
        UsageError: it has a parameter that it cannot have.
    """

    fn: Callable[..., EstimatorSpec]
    _names: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        names = names_taken(self.fn, "model_fn", _MODEL_FN_TAKES)
        object.__setattr__(self, "_names", names)

    def build(
        self, input_fn: Callable[..., Iterable[Any]], mode: str, given: Mapping[str, Any]
    ) -> tuple[Graph, EstimatorSpec]:
        """Build it on the batches of an input.

        Args:
            input_fn: gives the batches.
            mode: one of :class:`ModeKeys`.
            given: ``params`` and ``config``.

        Raises:
            UsageError: the input has no batch, or the function did not return what it
                should.
        """
        given = {**given, "mode": mode}
        wanted = names_taken(input_fn, "input_fn", _INPUT_FN_TAKES)
        batches = Batches(
            lambda: input_fn(**{name: given[name] for name in wanted}),
            labelled=mode != ModeKeys.PREDICT,
        )
        graph = Graph()
        features, labels = batches.add_to(graph)
        if labels is not None and "labels" not in self._names:
            raise UsageError(
                "model_fn has no parameter labels, and input_fn gives labels: name it"
            )
        given |= {"features": features, "labels": labels}
        try:
            spec = self.fn(**{name: given[name] for name in self._names})
        except UnknownNodeError as error:
            if labels is None:
                error.add_note(f"hookbus: {_why_no_labels(mode)}")
            raise
        return graph, _checked(spec, mode, graph)


def _checked(spec: Any, mode: str, graph: Graph) -> EstimatorSpec:
    """Return a spec with its nodes; have its loss shown."""
    if not isinstance(spec, EstimatorSpec):
        raise UsageError(
            f"model_fn should return an EstimatorSpec. It returned a {type(spec).__name__}"
        )
    if spec.mode != mode:
        raise UsageError(
            f"model_fn was called with mode={mode!r} and returned an EstimatorSpec for "
            f"{spec.mode!r}: pass mode on"
        )
    found = spec.resolved(graph)
    if found.loss is not None and "loss" not in graph.declared:
        graph.summary.scalar("loss", found.loss)
    return found


def _why_no_labels(mode: str) -> str:
    if mode == ModeKeys.PREDICT:
        return "there are no labels in a prediction: add what reads them in other modes"
    return "input_fn gives no labels: it yields features, not pairs (features, labels)"


def check_ends(call: str, graph: Graph, fetches: Any) -> None:
    """Refuse a call that goes on to the end of an input which it does not read.

    Raises:
        UsageError: it does not read it.
    """
    if not inputs_of(graph, graph.resolve_all(fetches, call)):
        raise UsageError(
            f"{call} would never end: nothing that the model_fn has it compute reads "
            "features or labels"
        )


def number_of(loss: Any) -> float:
    """Return the value of a loss as a float.

    Raises:
        UsageError: it is not one number.
    """
    shape = tuple(getattr(loss, "shape", ()))
    try:
        if math.prod(shape) == 1:
            return float(loss.item() if hasattr(loss, "item") else loss)
    except (TypeError, ValueError):
        pass
    raise UsageError(
        f"Loss must be scalar: loss of the EstimatorSpec gives a {type(loss).__name__} of "
        f"the shape {shape}"
    )
