"""Defines the graph: named nodes, each with the nodes that it reads.

A graph holds no values; a session does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack, cast, overload

from hookbus.errors import ArgumentTypeError, DuplicateNodeError, GraphError, spelled
from hookbus.graph.node import GLOBAL_STEP, METRICS, SUMMARIES, Node, metrics_of
from hookbus.graph.nodes import NodeTable, checked_name
from hookbus.graph.operation import (
    XP,
    Operation,
    by_position,
    checked_reads,
    name_of,
    reads_of,
)
from hookbus.graph.summaries import Summaries, SummaryKind, collecting, scalars_of
from hookbus.graph.wraps import (
    Wraps,
    check_wrappable,
    checked,
    joined,
    value_parameter,
    wrapper,
)
from hookbus.library.roles import RESERVED, Role


class _OpOptions(TypedDict, total=False):
    name: str | None
    reads: Mapping[str, Node | str] | None
    outputs: Iterable[str] | str


class _PlainOpOptions(_OpOptions, total=False):
    pure: bool


class _TrainOpOptions(_OpOptions, total=False):
    updates: Iterable[Node | str] | Node | str
    increment: int
    in_loop: bool | None


class _WrapOptions(TypedDict, total=False):
    reads: Mapping[str, Node | str] | None
    keeps_form: bool


class Graph(NodeTable):
    """Nodes under names: placeholders, variables, inputs and ops.

    Every graph has the variable ``global_step``, an int on the host that the session
    counts: each train op of a run adds its increment. Nodes and summaries can be added
    until the graph is finalized.

    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> w = graph.variable("w", 2.0)
    >>> @graph.op
    ... def y(x, w):
    ...     return x * w
    >>> y
    <op 'y'>

    Attributes:
        backend: the class of the sessions that run the graph, or where to import it, as
            ``MODULE:CLASS``. It is called with the graph.
        summary: declares values that viewers like TensorBoard show. It has the methods
            ``scalar``, ``histogram``, ``image`` and ``text``, which take a name and a node.
    """

    backend: str | Callable[[Any], Any] = "hookbus.backend.embedded:EmbeddedSession"

    def __init__(self) -> None:
        super().__init__()
        self._declared: dict[str, tuple[SummaryKind, str]] = {}
        self._unsaved: set[str] = set()
        self._wraps = Wraps()
        self._sessions = 0
        self._before: tuple[bool, frozenset[str], frozenset[str]]
        self.summary: Summaries[Node | str] = Summaries(self._summarize)

    @property
    def takes_reports(self) -> bool:
        """Whether a custom loop computes the steps and reports the values of nodes.

        Hooks that work in another way in a custom loop read this in ``begin``.
        """
        return False

    @property
    def objects(self) -> Mapping[str, Any]:
        """Objects that hold values of the graph, by name; sessions track them."""
        return {}

    @property
    def tracked(self) -> Mapping[str, Any]:
        """The objects that checkpoints contain, by name, also those of a custom loop."""
        return self.objects

    @property
    def variables(self) -> tuple[Node, ...]:
        """The variables, ``global_step`` left out."""
        return tuple(
            node
            for node in self._nodes.values()
            if node.kind == "variable" and node is not self.global_step
        )

    @property
    def roles(self) -> Mapping[str, Role]:
        """The role of each value that :meth:`names` lists, by name.

        A variable is a ``parameter`` if a train op of the program updates it, and a
        ``buffer`` if none does. A fed or pulled value is an ``input``, a computed one an
        ``output``.
        """
        trained = {
            variable
            for node in self._nodes.values()
            if node.owner is None
            for variable in node.updates
        }
        return {
            name: _role_of(node, name in trained)
            for name, node in self._nodes.items()
            if not (name.startswith(RESERVED) or (node.kind == "op" and node.source.trains))
        }

    @property
    def unsaved(self) -> frozenset[str]:
        """The names of the variables that checkpoints do not hold."""
        return frozenset(self._unsaved)

    @property
    def wraps(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the ops that wrap a node, in order, by the node's name."""
        return self._wraps.names

    @property
    def declared(self) -> Mapping[str, tuple[SummaryKind, str]]:
        """Kind and node of each declared summary, by its name."""
        return dict(self._declared)

    @property
    def metrics(self) -> Node | None:
        """The node that hooks watch by default; None if there is nothing to watch.

        Its value is a dict of ``loss`` and ``accuracy``, if the graph has them, and of the
        scalars among its summaries. Read this property in ``begin`` at the latest, because
        it adds the node.
        """
        metrics = {name: name for name in self._metrics()}
        nodes = metrics | scalars_of(self._declared)
        if METRICS in self._nodes or not nodes:
            return self._nodes.get(METRICS)

        def collect(*values: Any) -> dict[str, Any]:
            return dict(zip(nodes, values, strict=True))

        return self._add_op(Operation(METRICS, collect, tuple(nodes.values())))

    @property
    def reported(self) -> Node | None:
        """The node with all numbers of a step; in a graph, that of :attr:`metrics`.

        In a custom loop its value also has all other numbers that the step reports.
        Functions that the step reports are not called for it.
        """
        return self.metrics

    @property
    def summaries(self) -> Node | None:
        """The node with the declared summaries; None if none are declared.

        Its value is a dict, kind to name to value. Hooks may declare summaries in
        ``begin``, so read this property in ``after_create_session``.

        Raises:
            GraphError: the graph is not finalized yet.
        """
        self._check_finalized()
        if SUMMARIES in self._nodes or not self._declared:
            return self._nodes.get(SUMMARIES)
        return self._note(SUMMARIES, "op", collecting(self._declared))

    def placeholder(self, name: str) -> Node:
        """Add a node that must be fed in each run that needs its value.

        Args:
            name: the node's name, unique within the graph.
        """
        return self._add(name, "placeholder")

    def variable(self, name: str, value: Any, *, saved: bool = True) -> Node:
        """Add a node that keeps its value from run to run.

        Args:
            name: the node's name.
            value: the initial value, an array of any shape or a number; copied when a
                session starts, so a graph can serve several sessions.
            saved: whether checkpoints hold it; otherwise every backend session starts with
                the initial value, as for TensorFlow's local variables.

        Raises:
            GraphError: the value cannot be that of a variable, see :meth:`check_initial`.
        """
        self.check_initial(name, value)
        node = self._add(name, "variable", value)
        if not saved:
            self._unsaved.add(node.name)
        return node

    def check_initial(self, name: str, value: Any) -> None:
        """Check that the variable *name* can begin with a value.

        A graph of another backend overrides this for the values that its variables hold.

        Raises:
            GraphError: the value is a container, which an op could change unseen.
        """
        if isinstance(value, (list, tuple, dict, set, bytearray)):
            raise GraphError(
                f"variable {name!r} is given a {type(value).__name__}; give an array or a "
                "number, or make several variables"
            )

    def native(self, name: str, source: Any, *, is_variable: bool = False) -> Node:
        """Add a node whose value the backend provides, for graphs of other backends.

        Args:
            name: the node's name.
            source: the backend's own object, by which it finds the value. The embedded
                backend takes a :class:`~hookbus.backend.LiveValue`.
            is_variable: whether hooks may assign it, and checkpoints hold it.
        """
        return self._add(name, "variable" if is_variable else "native", source)

    def hold(
        self,
        values: Mapping[str, Any],
        states: Mapping[str, Any],
        things: Mapping[str, Any],
    ) -> None:
        """Make values inside the objects that a custom loop tracks known, by name.

        Only the graph of a custom loop knows such nodes. *values* are
        :class:`~hookbus.backend.LiveValue` objects, and *states* finds those that come and
        go. *things* are the objects themselves.
        """

    def input(self, name: str, factory: Callable[[], Iterable[Any]]) -> Node:
        """Add a node that takes its next value from an iterator, once a run.

        Only runs that need the node pull a value. The end of the iterator is the end of
        input. A checkpoint holds the position; a resumed session calls *factory* again
        and skips as many values, or uses the iterator's ``state_dict`` and
        ``load_state_dict`` if it has them.

        Args:
            name: the node's name.
            factory: returns the iterable. If that has ``__len__``, the session knows how
                many runs are left.
        """
        self._check_open(name)
        if not callable(factory):
            raise GraphError(
                f"input {name!r} takes a function that returns an iterable, "
                f"not {type(factory).__name__}: write lambda: ..."
            )
        return self._add(name, "input", factory)

    @overload
    def op(self, fn: Callable[..., Any], **options: Unpack[_PlainOpOptions]) -> Node: ...
    @overload
    def op(
        self, **options: Unpack[_PlainOpOptions]
    ) -> Callable[[Callable[..., Any]], Node]: ...
    def op(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        outputs: Iterable[str] | str = (),
        pure: bool = False,
    ) -> Node | Callable[[Callable[..., Any]], Node]:
        """Add a node computed from others; also a decorator.

        Args:
            fn: the function; each parameter names the node it reads. A parameter that names
                no node keeps its default; ``xp`` gets the backend's array namespace. An op
                that draws from a global random generator draws whenever a hook fetches it:
                give it a generator of its own to keep training independent of hooks.
            name: the node's name, by default the function's.
            reads: parameter to node, for parameters whose name is not that of the node.
            outputs: names of several results; *fn* then returns a dict with these keys,
                or a tuple in this order, and the nodes are ``NAME.OUTPUT``.
            pure: whether *fn* only computes: it draws no random number and changes nothing.
                Around other ops that a hook adds to a custom loop, the session restores
                the random generators in each step, which takes longer than most ops.

        Raises:
            GraphFinalizedError: the graph is finalized.
            UnknownNodeError: a parameter names no node.
            DuplicateNodeError: the name is taken.
            ArgumentTypeError: *reads* is not a dict, or *outputs* not a list of names.
        """
        self._check_open(name or fn)
        if fn is None:
            return partial(self.op, name=name, reads=reads, outputs=outputs, pure=pure)
        name = checked_name(name or name_of(fn), "a node's name")
        keys = _names_of(f"op {name!r}: outputs", outputs)
        pairs = tuple((key, f"{name}.{key}") for key in keys)
        return self._add_function(name, fn, reads, outputs=pairs, pure=pure)

    @overload
    def train_op(
        self, fn: Callable[..., Any], **options: Unpack[_TrainOpOptions]
    ) -> Node: ...
    @overload
    def train_op(
        self, **options: Unpack[_TrainOpOptions]
    ) -> Callable[[Callable[..., Any]], Node]: ...
    def train_op(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        reads: Mapping[str, Node | str] | None = None,
        updates: Iterable[Node | str] | Node | str = (),
        outputs: Iterable[str] | str = (),
        increment: int = 1,
        in_loop: bool | None = None,
    ) -> Node | Callable[[Callable[..., Any]], Node]:
        """Add a node that updates variables and advances ``global_step``.

        It runs in each run that fetches it, or that fetches an op which reads it. Fetching
        it gives None, or the dict of its outputs if it has any. All updates of a run are
        committed together, after the whole run succeeded; every read sees the values from
        before the run.

        Args:
            fn: the function, as in :meth:`op`. If *updates* is one name, it returns the new
                value; if several, a tuple of values or a dict by name. With *updates* and
                *outputs* it returns ``(new values, {output: value})``, with *outputs* alone
                the dict.
            name: the node's name, by default the function's.
            reads: parameter to node.
            updates: the variable or variables that get new values.
            outputs: the names of nodes for further results. Reading one does not run the
                op; it has the value of this run, or else of the op's last run.
            increment: the number that a run adds to ``global_step``; several ops add up.
            in_loop: whether ``session.loop()`` runs it; by default True, and False for the
                train ops that hooks add in ``begin``.

        Raises:
            GraphFinalizedError, UnknownNodeError, DuplicateNodeError, ArgumentTypeError: as
                in :meth:`op`.
            GraphError: an update is not a variable, or is the global step.
        """
        self._check_open(name or fn)
        if fn is None:
            return partial(
                self.train_op,
                name=name,
                reads=reads,
                updates=updates,
                outputs=outputs,
                increment=increment,
                in_loop=in_loop,
            )
        name = checked_name(name or name_of(fn), "a node's name")
        if not isinstance(increment, int) or increment < 0:
            raise GraphError(
                f"op {name!r}: increment is {increment!r}; expected an integer of at "
                "least 0"
            )
        single = isinstance(updates, str | Node)
        targets = (updates,) if single else _tuple(f"op {name!r}: updates", updates)
        keys = _names_of(f"op {name!r}: outputs", outputs)
        return self._add_function(
            name,
            fn,
            reads,
            outputs=tuple((key, key) for key in keys),
            updates=tuple(self.variable_named(v, f"op {name!r}") for v in targets),
            single_update=single,
            increment=increment,
            trains=True,
            in_loop=self._owner() is None if in_loop is None else in_loop,
        )

    @overload
    def wrap(
        self,
        node: Node | str | Sequence[Node | str],
        fn: Callable[..., Any],
        **options: Unpack[_WrapOptions],
    ) -> Node: ...
    @overload
    def wrap(
        self, node: Node | str | Sequence[Node | str], **options: Unpack[_WrapOptions]
    ) -> Callable[[Callable[..., Any]], Node]: ...
    def wrap(
        self,
        node: Node | str | Sequence[Node | str],
        fn: Callable[..., Any] | None = None,
        *,
        reads: Mapping[str, Node | str] | None = None,
        keeps_form: bool = True,
    ) -> Node | Callable[[Callable[..., Any]], Node]:
        """Change the value that the readers of a node see; also a decorator.

        Every op that reads the node and every fetch of it gets the result of *fn*, even if
        the node is fed. If there are several wraps, each gets the value of the one before
        it; those of hooks follow the order of the hooks.

        A variable keeps its own value: only ops see the wrapped one. Fetches, hooks that
        assign it and checkpoints have the variable's.

        A wrap is part of the training: the random numbers that *fn* draws advance the
        generators, and a resumed session draws the same ones.

        In the graph of a custom loop, a wrap applies to the values of
        ``session.iterate(..., name=NAME)`` and of ``step.through(NAME=...)``, where *node*
        is NAME. It also applies to values on their way inside tracked objects, which
        :meth:`Library.change` lists.

        Args:
            node: the node to wrap: a placeholder, input, variable, op or output. Of a list
                of nodes *fn* gets the values together, as a dict by name.
            fn: gets the value by its first parameter; its other parameters name nodes, as
                in :meth:`op`. The function returns a value of the same shape and dtype, or
                the same nesting of such values.
            reads: parameter to node, for parameters whose name is not that of the node.
            keeps_form: whether to refuse a result of another shape, dtype or nesting.

        Returns:
            The op of the wrap. Its name is ``NODE:PLUGIN``.

        Raises:
            GraphFinalizedError: the graph is finalized.
            UnknownNodeError: there is no such node, or a parameter names none.
            ArgumentTypeError: *reads* is not a dict.
            GraphError: the node cannot be wrapped: it is a train op or ``global_step``, or
                *fn* reads a node that is computed from it; one of several nodes is computed
                from another one; or another wrap takes only some of them together.

        >>> graph = Graph()
        >>> a, b = graph.variable("a", 3.0), graph.variable("b", 4.0)
        >>> @graph.wrap(["a", "b"])
        ... def clip(values):
        ...     norm = sum(value**2 for value in values.values()) ** 0.5
        ...     return {name: value / norm for name, value in values.items()}
        >>> graph.wraps
        {'a': ('a:clip',), 'b': ('b:clip',)}
        """
        if fn is None:
            return partial(self.wrap, node, reads=reads, keeps_form=keeps_form)
        nodes = [*node] if isinstance(node, list | tuple) else [cast("Node | str", node)]
        if not nodes:
            raise GraphError("wrap() is given no nodes; name those to wrap")
        self._check_open(nodes[0], "wrap")
        owner = self._owner()
        who = wrapper(owner)
        asker = f"the wrap of {who}" if owner else who
        names = [*dict.fromkeys(self.resolve(each, asker).name for each in nodes)]
        for each in names:
            self.check_wrap(self.resolve(each), who)
        self._wraps.check_joint(names, who)
        is_joint = isinstance(node, list | tuple)
        operation = self._wrapping(names, fn, reads, owner, is_joint, keeps_form)
        added = self._add_op(operation)
        self._wraps.add(operation, who)
        try:
            self._wraps.check_order(operation, who, lambda each: self.resolve(each).reads)
        except GraphError:
            for name in (operation.name, *(output for _, output in operation.outputs)):
                del self._nodes[name]
            self._wraps.keep(self._nodes)
            raise
        return added

    def _wrapping(
        self,
        names: Sequence[str],
        fn: Callable[..., Any],
        reads: Mapping[str, Node | str] | None,
        owner: str | None,
        is_joint: bool,
        keeps_form: bool,
    ) -> Operation:
        """Return the op that wraps nodes, one or several together."""
        name = self._wraps.new_name("+".join(names), owner, fn, self._nodes)
        reads = checked_reads(name, reads)
        value = value_parameter(name, fn, reads)
        before = [self._wraps.last(each) for each in names]
        given = self._reads(name, fn, {**reads, value: before[0]})
        call = by_position(fn, [parameter for parameter, _ in given])
        outputs: list[tuple[str, str]] = []
        if is_joint:
            call = joined(call, names)
            for each in names:
                taken = {*self._nodes, name, *(output for _, output in outputs)}
                outputs.append((each, self._wraps.new_name(each, owner, fn, taken)))
        if keeps_form:
            call = checked(call, names if is_joint else names[0], wrapper(owner))
        return Operation(
            name,
            call,
            (*before, *(read for _, read in given[1:])),
            outputs=tuple(outputs),
            wraps=tuple(names),
        )

    def check_wrap(self, node: Node, who: str) -> None:
        """Check that *who* can wrap a node.

        A graph of another backend overrides this for nodes whose readers it does not know.

        Raises:
            GraphError: the node cannot be wrapped, see :meth:`wrap`.
        """
        check_wrappable(node, who)

    def wired(self, operation: Operation) -> Operation:
        """Return an op as a run calls it: it reads the wrapped values of nodes."""
        return self._wraps.wired(operation)

    def fetched(self, name: str) -> str:
        """Return the name of the node whose value a fetch of a node gets.

        The last wrap has that value, unless the node is a variable or has no wraps.
        """
        last = self._wraps.last(name)
        return name if last != name and self.resolve(name).kind == "variable" else last

    def finalize(self) -> None:
        """Refuse nodes, wraps and summaries from now on.

        Raises:
            GraphError: a train op would write the wrapped value of a variable back.
        """
        if not self._finalized:
            self._wraps.check_updates(self._nodes)
        self._finalized = True

    def enter(self) -> None:
        """Remember the graph as it is, when its first session begins."""
        if self._sessions == 0:
            names = frozenset(self._nodes), frozenset(self._declared)
            self._before = self._finalized, *names
        self._sessions += 1

    def leave(self) -> None:
        """Undo the changes of sessions to the graph, when the last one has ended.

        Nodes, wraps and summaries added since the first session began vanish, and so does
        the finalization.
        """
        self._sessions -= 1
        if self._sessions == 0:
            self._finalized, names, summaries = self._before
            for name in self._nodes.keys() - names:
                del self._nodes[name]
            self._unsaved &= names
            self._wraps.keep(names)
            for name in self._declared.keys() - summaries:
                del self._declared[name]

    def _add_function(
        self,
        name: str,
        fn: Callable[..., Any],
        reads: Mapping[str, Node | str] | None,
        **fields: Any,
    ) -> Node:
        """Add an op that calls a function; *fields* are those of :class:`Operation`."""
        found = self._reads(name, fn, checked_reads(name, reads))
        call = by_position(fn, [parameter for parameter, _ in found])
        nodes = tuple(node for _, node in found)
        return self._add_op(Operation(name, call, nodes, **fields))

    def _reads(
        self, name: str, fn: Callable[..., Any], reads: Mapping[str, Node | str]
    ) -> list[tuple[inspect.Parameter, str]]:
        """Return each parameter of an op's function that reads a node, and that node."""
        found = []
        for parameter, wanted in reads_of(name, fn, reads):
            if wanted == XP:
                found.append((parameter, XP))
            elif (
                parameter.default is parameter.empty
                or wanted in self
                or parameter.name in reads
            ):
                node = self.resolve(wanted, f"parameter {parameter.name!r} of op {name!r}")
                found.append((parameter, node.name))
        return found

    def _summarize(self, kind: SummaryKind, name: str, node: Node | str) -> None:
        self._check_open(f"{kind} summary {name}")
        name = checked_name(name, "a summary's name")
        if name in self._declared:
            raise DuplicateNodeError(
                f"the graph has a {self._declared[name][0]} summary {name!r} already"
            )
        found = self.resolve(node, f"the {kind} summary {name!r}")
        self._declared[name] = kind, found.name

    def _metrics(self) -> Iterable[str]:
        """Return the names of the nodes that hooks watch by default, besides scalars."""
        return metrics_of(self)

    def _check_finalized(self) -> None:
        if not self._finalized:
            raise GraphError(
                "graph.summaries is read while hooks may still declare some; read it in "
                "after_create_session"
            )


def _role_of(node: Node, is_trained: bool) -> Role:
    """Return the role of a node; a value inside an object has one of its own."""
    role: Role | None = getattr(node.source, "role", None)
    if node.name == GLOBAL_STEP:
        return "state"
    if node.kind == "variable":
        return role or ("parameter" if is_trained else "buffer")
    if node.kind in ("input", "placeholder"):
        return "input"
    return (role if node.kind == "native" else None) or "output"


def _names_of(what: str, given: Any) -> tuple[str, ...]:
    """Return the names that an argument gives, one or several."""
    every = (given,) if isinstance(given, str) else _tuple(what, given)
    return tuple(checked_name(name, f"{what}: a name") for name in every)


def _tuple(what: str, given: Any) -> tuple[Any, ...]:
    try:
        return tuple(given)
    except TypeError:
        raise ArgumentTypeError(
            f"{what} is {spelled(given)}; expected a list of names"
        ) from None
