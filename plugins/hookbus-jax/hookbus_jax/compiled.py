"""Compiles some ops of a run as one function, and explains why one cannot run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp

from hookbus import GraphError
from hookbus.backend import Operation, Program, blame
from hookbus_jax import values
from hookbus_jax.parts import Call, Slots, Updates, label_of, reads_of
from hookbus_jax.values import Form

_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""The errors of JAX if an op needs to know a value while it is traced."""

_FOREIGN = ("callback", "debug_print", "ffi_call")
"""Parts of the names of the primitives that call Python, or foreign functions."""


class CompiledPart:
    """Ops that are one compiled function.

    The function returns the new values of variables and the slots that are wanted outside
    it, and XLA leaves out all that these do not need.

    Args:
        calls: the ops, in order.
        program: the plan that they belong to.
        names: the node of each slot.
        forms: the form of each variable.
        wanted: the slots that fetches and later parts read.
        donated: the variables whose memory it may take.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        program: Program,
        names: Mapping[int, str],
        forms: Mapping[str, Form],
        wanted: set[int],
        donated: frozenset[str],
    ) -> None:
        self.label = label_of(calls)
        reads = reads_of(calls)
        self.reads = tuple(slot for slot in reads if slot != program.xp_slot)
        # An array leaves XLA once: in the dict of its op, if somebody wants that.
        whole = [call for call in calls if call.outputs and call.own in wanted]
        self._inside = tuple(
            (slot, call.own, key) for call in whole for key, slot in call.outputs
        )
        alone = {s for c in calls for s in (c.gives[1:] if c.is_split else c.gives)}
        alone -= {slot for slot, _, _ in self._inside}
        self._returns = (*(call.own for call in whole), *sorted(alone & wanted))
        self.gives = (*self._returns, *(slot for slot, _, _ in self._inside))
        self._updates = frozenset(name for c in calls for name in c.operation.updates)
        self._calls = calls
        self._names = names
        self._forms = forms
        self._xp_slot = program.xp_slot
        self._pick = _picking(self.reads)
        self._function: Callable[..., Any] | None = None
        self._donated = [
            number
            for number, slot in enumerate(self.reads)
            if names[slot] in donated and names[slot] in self._updates
        ]

    def run(self, slots: Slots, updates: Updates) -> None:
        """Call the function."""
        arguments = self._pick(slots)
        function = self._function
        try:
            if function is None:
                function = self._compiled(arguments)
            news, found = function(*arguments)
        except Exception as error:
            explained = self._explained(slots)
            if explained is None:
                raise
            raise explained from error
        self._function = function
        updates.update(news)
        for slot, value in zip(self._returns, found):  # noqa: B905 (strict takes time)
            slots[slot] = value
        for slot, own, key in self._inside:
            slots[slot] = slots[own][key]

    def _compiled(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Return the function to call.

        Callbacks and foreign functions may fail while XLA runs. A function with such calls
        donates nothing, and its results are awaited before they count. A second function,
        without donation, is kept for runs in which JAX looks for NaN.
        """

        def function(*given: Any) -> Any:
            return self._trace(given)

        names = [call.operation.name for call in self._calls]
        function.__name__ = function.__qualname__ = "_".join(names)
        keeping: Any = jax.jit(function)
        if _may_fail(keeping.trace(*arguments).jaxpr.jaxpr):
            return lambda *given: jax.block_until_ready(keeping(*given))
        if not self._donated:
            return keeping  # type: ignore[no-any-return]
        donating: Any = jax.jit(function, donate_argnums=self._donated)
        config = jax.config

        def chosen(*given: Any) -> Any:
            if config.jax_debug_nans or config.jax_debug_infs:
                return keeping(*given)
            return donating(*given)

        return chosen

    def _trace(self, given: Sequence[Any]) -> Any:
        """Call the ops with tracers; return the new values and the slots that leave."""
        slots: dict[int, Any] = dict(zip(self.reads, given, strict=True))
        updates: Updates = {}
        if self._xp_slot is not None:
            slots[self._xp_slot] = jnp
        for call in self._calls:
            operation = call.operation
            try:
                returned = operation.call(*[slots[slot] for slot in call.reads])
                if not call.is_split:
                    slots[call.own] = _checked(returned, operation)
                    continue
                news, results = operation.unpack(returned)
                for name, value in news.items():
                    updates[name] = _update(name, value, self._forms[name], operation)
                for key, slot in call.outputs:
                    slots[slot] = _checked(results[key], operation)
                slots[call.own] = {key: slots[slot] for key, slot in call.outputs}
            except BaseException as error:
                _explain(error, operation)
                raise
        return updates, tuple(slots[slot] for slot in self._returns)

    def _explained(self, slots: Slots) -> Exception | None:
        """Return the error of values that no compiled function takes; None without one."""
        readers = {slot: call.operation for call in self._calls for slot in call.reads}
        for slot in self.reads:
            who = f"op {readers[slot].name!r} reads {self._names[slot]!r}, "
            if values.is_deleted(slots[slot]):
                return GraphError(
                    f"{who}whose array was deleted: a function that got it donated it. "
                    "Give that function a copy (jnp.copy), and use what it returns"
                )
            for leaf in values.not_arrays(slots[slot]):
                return GraphError(
                    f"{who}which has a {type(leaf).__name__}, and a compiled op reads "
                    "arrays; read it in an op with host=True"
                )
        return None


def _picking(slots: Sequence[int]) -> Callable[[Slots], Sequence[Any]]:
    if len(slots) < 2:
        return lambda filled: [filled[slot] for slot in slots]
    return itemgetter(*slots)


def _update(name: str, value: Any, form: Form, operation: Operation) -> Any:
    """Return the new value of a variable, of its dtypes.

    Raises:
        GraphError: it does not fit the variable.
    """
    leaves = form.leaves(value, name, f"op {operation.name!r}")
    return form.tree.unflatten(map(values.converted, leaves, form.dtypes))


def _checked(value: Any, operation: Operation) -> Any:
    """Return the result of an op.

    Raises:
        GraphError: XLA could not return a part of it.
    """
    for leaf in values.not_arrays(value):
        raise GraphError(
            f"op {operation.name!r} returned a {type(leaf).__name__}, and a compiled op "
            "returns arrays, or dicts, lists and tuples of them; for text and files add it "
            "with host=True"
        )
    return value


def _explain(error: BaseException, operation: Operation) -> None:
    name = f"op {operation.name!r}"
    note = f"raised in {name}"
    if isinstance(error, _UNTRACEABLE):
        note += (
            ", which JAX traces before it knows any value. Compute with xp (jax.numpy) and "
            "jax.lax, or add the op with host=True: it then gets NumPy arrays"
        )
    blame(error, name, note)


def _may_fail(jaxpr: Any) -> bool:
    """Return whether a traced function calls foreign code while XLA runs it."""
    for equation in jaxpr.eqns:
        if any(kind in equation.primitive.name for kind in _FOREIGN):
            return True
        for value in equation.params.values():
            if any(map(_may_fail, _inner(value))):
                return True
    return False


def _inner(value: Any) -> list[Any]:
    """Return the traced functions in a parameter of a traced function."""
    parts = value if isinstance(value, tuple | list) else (value,)
    found = [getattr(part, "jaxpr", part) for part in parts]
    return [each for each in found if hasattr(each, "eqns")]
