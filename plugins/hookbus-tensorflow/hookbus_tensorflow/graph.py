"""Makes a TensorFlow graph a graph of hookbus: its tensors are nodes, under their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

import attrs
import tensorflow as tf

from hookbus import GraphError, UsageError
from hookbus.backend import Graph, Node, NodeKind, Operation
from hookbus.errors import GraphFinalizedError
from hookbus_tensorflow import ops

GLOBAL_STEP = "global_step"
_MOST_LEAVES = 4096
_SUMMARIES = {"ScalarSummary": "scalar", "HistogramSummary": "histogram"}
_COMPOSITE = (tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor)


@attrs.frozen(eq=False)
class Element:
    """The objects of TensorFlow for a node.

    Attributes:
        thing: the variable, tensor or op, which a ``tf.compat.v1.Session`` can fetch.
        parts: the tensors and ops that a run of it computes.
        graph: the graph of the node.
    """

    thing: Any
    parts: tuple[Any, ...]
    graph: TFGraph

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the placeholders that a run of it needs."""
        return self.graph.placeholders_of(self.parts, ())


class TFGraph(Graph):
    """A graph around a ``tf.Graph``.

    Each tensor, op and variable of the ``tf.Graph`` is a node under its name there.
    ``loss:0`` is another name of ``loss``; ``^loss`` is the op of that name, which gives no
    value. Objects of TensorFlow stand for their nodes in fetches and feeds.

    ``global_step`` is TensorFlow's own, created if it is missing. An op that hooks add with
    ``graph.op`` is a Python function: it reads the values that the TensorFlow graph has
    computed in the same run.

    Args:
        tf_graph: the graph; by default the current default graph.
        train_op: the op, tensor or name that ``session.loop()`` runs. By default the ops in
            TensorFlow's collection ``train_op`` that advance the global step; optimizers
            put theirs there.
        aliases: further names for nodes, each with a name or an object of TensorFlow.
        scaffold: initializes the session, as in TensorFlow; by default it initializes all
            variables and tables.
        session_config: the ``tf.compat.v1.ConfigProto`` of sessions.
        master: the address of the TensorFlow server; by default this process.
        restore_from: the path of a checkpoint of TensorFlow that the scaffold's saver
            restores instead of initializing the model.
        session_creator: a ``SessionCreator`` of TensorFlow, which creates and initializes
            the sessions instead.
        feeds_all: whether each run is fed all placeholders that ``loss`` and ``accuracy``
            need. Without it, hooks watch these by default only if they need none.

    Raises:
        UsageError: *tf_graph* is not a ``tf.Graph``, or there is no graph because
            TensorFlow executes eagerly.
        GraphError: *train_op* does not advance the global step.

    >>> with tf.Graph().as_default() as tf_graph:
    ...     step = tf.compat.v1.train.create_global_step()
    ...     w = tf.compat.v1.get_variable("w", initializer=8.0)
    ...     loss = tf.square(w, name="loss")
    ...     sgd = tf.compat.v1.train.GradientDescentOptimizer(0.25)
    ...     train = sgd.minimize(loss, global_step=step)
    >>> graph = TFGraph(tf_graph)
    >>> graph.resolve(w), graph.resolve("loss:0"), graph.resolve(train)
    (<variable 'w'>, <native 'loss'>, <op 'GradientDescent'>)
    >>> from hookbus import Config, MonitoredSession
    >>> with MonitoredSession(graph, config=Config(autoload=False)) as session:
    ...     _, _ = session.run(train), session.run("GradientDescent")
    ...     print(session.global_step, session.run(w))
    2 2.0
    """

    backend = "hookbus_tensorflow.session:TFSession"

    def __init__(
        self,
        tf_graph: Any = None,
        train_op: Any = None,
        aliases: Mapping[str, Any] = MappingProxyType({}),
        *,
        scaffold: Any = None,
        session_config: Any = None,
        master: str = "",
        restore_from: str | None = None,
        session_creator: Any = None,
        feeds_all: bool = True,
    ) -> None:
        self.tf_graph = _checked(tf_graph)
        self.session_config = session_config
        self.master = master
        self.restore_from = restore_from
        self.session_creator = session_creator
        self._feeds_all = feeds_all
        self._scaffold = scaffold
        self._found: dict[str, Node] = {}
        self._aliases: dict[str, Node] = {}
        self._elements: dict[str, Element] = {}
        self._leaves: dict[int, tuple[Any, Node]] = {}
        self._variables: tuple[int, Mapping[str, Any]] = -1, {}
        self._op_names: tuple[int, dict[str, Any]] = -1, {}
        self._open = 0
        self._was_final = False
        self._train_op: Node | None = None
        with self.tf_graph.as_default():
            self.step_variable = _step_of(self.tf_graph)
        super().__init__()
        if train_op is not None:
            self._train_op = self._declared_train_op(train_op)
        self._aliases = {
            name: self.resolve(of, f"alias {name!r}") for name, of in aliases.items()
        }

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes that were added or asked for, train ops, and variables."""
        found = (*self._train_ops(), *self._tf_variables(), *self._found.values())
        return {**super().nodes, **{node.name: node for node in found}}

    @property
    def variables(self) -> tuple[Node, ...]:
        """The variables of both, ``global_step`` left out."""
        return (*super().variables, *self._tf_variables())

    @property
    def unsaved(self) -> frozenset[str]:
        """The names of the variables that checkpoints do not hold: the local ones."""
        keys = tf.compat.v1.GraphKeys
        saved = {v.op.name for v in self.tf_graph.get_collection(keys.GLOBAL_VARIABLES)}
        return super().unsaved | (self.tf_variables.keys() - saved)

    @property
    def python(self) -> Graph:
        """The part of the graph that Python computes."""
        return cast("Graph", _PythonPart(self, super().variables, super().nodes))

    @property
    def tf_variables(self) -> Mapping[str, Any]:
        """The variables of the ``tf.Graph`` by name, the global step left out."""
        version = self.tf_graph.version
        if self._variables[0] != version:
            found = dict(ops.variables_of(self.tf_graph))
            found.pop(self.step_variable.op.name, None)
            self._variables = version, found
        return self._variables[1]

    def find(self, name: str) -> Node | None:
        """Return the node of a name in the ``tf.Graph``, or of an alias."""
        node = self._aliases.get(name) or self._found.get(name)
        if node is None and name != GLOBAL_STEP:  # that is added, like any graph's
            thing = self._thing(name)
            node = None if thing is None else self._node(thing)
        return node

    def leaf(self, thing: Any) -> Node | None:
        """Return the node of an object of TensorFlow, or None for any other object.

        Raises:
            GraphError: it belongs to another graph, or to none.
        """
        known = self._leaves.get(id(thing))
        if known is not None and known[0] is thing:
            return known[1]
        if not isinstance(thing, (tf.Tensor, tf.Operation, tf.Variable, *_COMPOSITE)):
            return None
        graph = _graph_of(thing)
        if graph is None:
            raise GraphError(
                f"{_spelled(thing)} belongs to no graph; make it "
                "inside `with tf_graph.as_default():`, or feed it"
            )
        if graph is not self.tf_graph:
            raise GraphError(
                f"{_spelled(thing)} belongs to another tf.Graph than the session's"
            )
        node = self._node(thing)
        if len(self._leaves) >= _MOST_LEAVES:
            self._leaves.clear()
        self._leaves[id(thing)] = thing, node
        return node

    def finalize(self) -> None:
        """Add the ops that the session needs, then refuse nodes of both kinds from now on.

        Raises:
            GraphFinalizedError: the ``tf.Graph`` was finalized before anything was added.
        """
        with self.tf_graph.as_default():
            try:
                self.steps_after()
                self.scaffold.finalize()
            except RuntimeError as error:
                if not self.tf_graph.finalized:
                    raise
                raise GraphFinalizedError(
                    "the session must add ops to the tf.Graph, which is finalized; open "
                    "the session before tf_graph.finalize()"
                ) from error
        self._declare_summaries()
        super().finalize()

    def check_wrap(self, node: Node, who: str) -> None:
        """Refuse wraps.

        Raises:
            GraphError: always.
        """
        raise GraphError(
            f"{who} cannot wrap {node.name!r}: TensorFlow computes its graph in one call, "
            "and the readers of a tensor are fixed; build what the wrap does into the "
            "tf.Graph, or feed the node"
        )

    def enter(self) -> None:
        """Remember whether the ``tf.Graph`` is finalized, when its first session begins."""
        if self._open == 0:
            self._was_final = self.tf_graph.finalized
        self._open += 1
        super().enter()

    def leave(self) -> None:
        """Let ops be added to the ``tf.Graph`` again, when its last session has ended."""
        super().leave()
        self._open -= 1
        if self._open == 0 and self.tf_graph.finalized and not self._was_final:
            self.tf_graph._unsafe_unfinalize()  # as TensorFlow's own sessions do

    @property
    def scaffold(self) -> Any:
        """The ``tf.compat.v1.train.Scaffold`` of the sessions."""
        if self._scaffold is None:
            self._scaffold = tf.compat.v1.train.Scaffold()
        return self._scaffold

    def placeholders_of(
        self, parts: Iterable[Any], fed: Collection[str]
    ) -> tuple[str, ...]:
        """Return the names of the nodes that a run of some tensors and ops must be fed.

        Args:
            parts: the tensors and ops.
            fed: the names of the tensors that are fed, as TensorFlow writes them.
        """
        needed = ops.needed_by(parts, fed)
        return tuple(sorted(op.name for op in needed if op.type in ops.PLACEHOLDERS))

    def steps_after(self) -> Mapping[Any, Any]:
        """Return a tensor with the new global step for each op that changes the step.

        The tensors are added when this is first called. An op inside a loop or a condition
        has None: only its own run can read the step after it.
        """
        steps: dict[Any, Any] = {}
        for op in ops.writers_of(self.step_variable):
            name = f"hookbus/step_after/{op.name}"
            if op._get_control_flow_context() is not None:
                steps[op] = None
            elif name in self._tf_names():
                steps[op] = self.tf_graph.get_tensor_by_name(f"{name}:0")
            elif self.tf_graph.finalized:  # made for checkpoints, after all others
                steps[op] = None
            else:
                with tf.name_scope(""), tf.control_dependencies([op]):
                    steps[op] = tf.identity(self.step_variable.read_value(), name=name)
        return steps

    def _declare_summaries(self) -> None:
        """Declare the scalars and histograms among TensorFlow's summaries."""
        for tensor in self.tf_graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES):
            kind = _SUMMARIES.get(getattr(tensor, "op", tensor).type)
            if kind is None:
                continue
            tag, value = tensor.op.inputs
            static = tf.get_static_value(tag)
            name = None if static is None or static.shape else static.item().decode()
            if name is not None and name not in self.declared:
                getattr(self.summary, kind)(name, value)

    def _train_ops(self) -> tuple[Node, ...]:
        """Return the nodes of the ops that ``session.loop()`` runs."""
        if self._train_op is not None:
            return (self._train_op,)
        things = ops.collection(self.tf_graph, tf.compat.v1.GraphKeys.TRAIN_OP)
        found = [thing.op if isinstance(thing, tf.Tensor) else thing for thing in things]
        return tuple(self._train_node(op) for op in found if self._is_train_op(op))

    def _is_train_op(self, op: Any) -> bool:
        """Return whether an optimizer has made an op, and it advances the global step."""
        things = self.tf_graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP)
        return any(op in (thing, getattr(thing, "op", None)) for thing in things) and (
            self._advances(op)
        )

    def _declared_train_op(self, train_op: Any) -> Node:
        """Return the node of the op that was declared as the train op."""
        asker = "train_op= of TFGraph"
        if isinstance(train_op, str):
            thing = self._operation(train_op)
            if thing is None:
                return self.resolve(train_op, asker)
        else:
            node = self.resolve(train_op, asker)
            element = self.element(node.name)
            assert element is not None
            thing = element.thing
        if not self._advances(thing):
            raise GraphError(
                f"the train op {thing.name!r} does not advance the global step: give "
                "minimize() or apply_gradients() the argument "
                "global_step=tf.compat.v1.train.get_or_create_global_step()"
            )
        return self._train_node(thing)

    def _advances(self, thing: Any) -> bool:
        needed = ops.needed_by([thing], ())
        return any(op in needed for op in ops.writers_of(self.step_variable))

    def _train_node(self, thing: Any) -> Node:
        """Return the node of a train op, which has no value."""
        op = thing.op if isinstance(thing, tf.Tensor) else thing
        name = _op_name(op)
        node = self._found.get(name)
        if node is None or node.kind != "op":
            reads = self.placeholders_of([op], ())
            source = Operation(name, _refuse, reads, increment=1, trains=True, in_loop=True)
            node = self._add_found(name, "op", source, Element(op, (op,), self))
        return node

    def element(self, name: str) -> Element | None:
        """Return the element of a node of the ``tf.Graph``; None for another node."""
        return self._elements.get(name)

    def elements_of(self, names: Iterable[str]) -> dict[str, Element]:
        """Return the elements of those nodes that are TensorFlow's."""
        found = ((name, self._elements.get(name)) for name in names)
        return {name: element for name, element in found if element is not None}

    def _tf_variables(self) -> list[Node]:
        return [self._node(variable) for variable in self.tf_variables.values()]

    def _tf_names(self) -> Mapping[str, Any]:
        """Return all ops of the ``tf.Graph`` by name."""
        version = self.tf_graph.version
        if self._op_names[0] != version:
            self._op_names = version, {op.name: op for op in self.tf_graph.get_operations()}
        return self._op_names[1]

    def _metrics(self) -> Iterable[str]:
        """Return those of ``loss`` and ``accuracy`` that a hook can watch in each run."""
        return [name for name in super()._metrics() if self._is_metric(self.resolve(name))]

    def _is_metric(self, node: Node) -> bool:
        """Return whether a node is a number, and can be had in each run."""
        element = self.element(node.name)
        if element is None:  # computed by Python
            return True
        thing = element.thing
        if not isinstance(thing, tf.Tensor | tf.Variable) or thing.shape.rank not in (
            0,
            None,
        ):
            return False
        return self._feeds_all or not element.reads

    def _names(self) -> Iterable[str]:
        return [*super()._names(), *self._aliases, *self._tf_names()]

    def _operation(self, name: str) -> Any:
        return self._tf_names().get(name)

    def _thing(self, name: str) -> Any:
        """Return the variable, tensor or op of a name; None for an unknown name."""
        if name.startswith("^"):
            return self._operation(name[1:])
        op_name, _, output = name.partition(":")
        variable = self.tf_variables.get(op_name)
        if variable is None and op_name == self.step_variable.op.name:
            variable = self.step_variable
        op = self._operation(op_name)
        if output in ("", "0") and (variable is not None or op is None):
            return variable
        if op is None or not (output or op.outputs):
            return op
        place = int(output or 0) if (output or "0").isdecimal() else len(op.outputs)
        return op.outputs[place] if place < len(op.outputs) else None

    def _node(self, thing: Any) -> Node:
        """Return the node of an object of this graph."""
        if isinstance(thing, tf.Operation):
            name, parts = _op_name(thing), (thing,)
            if name not in self._found and self._is_train_op(thing):
                return self._train_node(thing)
        elif isinstance(thing, tf.Tensor):
            name, parts = _tensor_name(thing), (thing,)
            variable = self._thing(name)
            if isinstance(variable, tf.Variable):
                return self._node(variable)
        elif isinstance(thing, tf.Variable):
            if thing is self.step_variable or thing.op is self.step_variable.op:
                return self.global_step
            name, parts = thing.op.name, (thing.op,)
        else:
            parts = tuple(tf.nest.flatten(thing, expand_composites=True))
            names = ", ".join(map(_tensor_name, parts))
            name = f"{type(thing).__name__}({names})"
        node = self._found.get(name)
        if node is None:
            element = Element(thing, parts, self)
            kind: NodeKind = "native"
            if isinstance(thing, tf.Variable):
                kind = "variable"
            elif isinstance(thing, tf.Tensor) and thing.op.type in ops.PLACEHOLDERS:
                kind = "placeholder"
            node = self._add_found(name, kind, element, element)
        return node

    def _add_found(self, name: str, kind: NodeKind, source: Any, element: Element) -> Node:
        self._elements[name] = element
        self._leaves.clear()  # a train op is declared in the place of an ordinary one
        node = self._found[name] = Node(name, kind, source, self)
        return node


class _PythonPart:
    """The nodes that Python computes, as a graph for the embedded backend."""

    def __init__(
        self, whole: TFGraph, variables: tuple[Node, ...], nodes: Mapping[str, Node]
    ) -> None:
        self.global_step = whole.global_step
        self.variables = variables
        self.nodes = nodes
        self.resolve = whole.resolve
        self.leaf = whole.leaf
        self.wired, self.fetched = whole.wired, whole.fetched


def _checked(tf_graph: Any) -> Any:
    """Return the graph to use: the given one, or the default graph."""
    if tf_graph is None:
        if tf.executing_eagerly():
            raise UsageError(
                "TFGraph() takes the default graph, and none exists, because TensorFlow "
                "executes eagerly: build the graph inside `with tf.Graph().as_default():`, "
                "or call tf.compat.v1.disable_eager_execution() first"
            )
        return tf.compat.v1.get_default_graph()
    if not isinstance(tf_graph, tf.Graph):
        raise UsageError(
            f"TFGraph takes a tf.Graph, not a {type(tf_graph).__name__}; for an eager "
            "training loop use a session without a graph"
        )
    return tf_graph


def _step_of(tf_graph: Any) -> Any:
    """Return the variable of the global step; create it if it is missing."""
    train = tf.compat.v1.train
    step = train.get_global_step(tf_graph)
    if step is not None:
        return step
    if tf_graph.finalized:
        raise GraphFinalizedError(
            "the tf.Graph has no global step and is finalized; create it with "
            "tf.compat.v1.train.create_global_step() before tf_graph.finalize()"
        )
    return train.create_global_step(tf_graph)


def _graph_of(thing: Any) -> Any:
    """Return the graph of an object of TensorFlow; None for an eager one."""
    if isinstance(thing, _COMPOSITE):
        thing = tf.nest.flatten(thing, expand_composites=True)[0]
    if isinstance(thing, tf.Variable):
        thing = thing.handle if hasattr(thing, "handle") else thing.op
    try:
        return thing.graph
    except AttributeError:
        return None


def _spelled(thing: Any) -> str:
    classes = (tf.Variable, tf.Tensor)  # which have derived classes that no user names
    kind = next((cls for cls in classes if isinstance(thing, cls)), type(thing)).__name__
    try:
        return f"the {kind} {thing.name!r}"
    except AttributeError:
        return f"the eager {kind}"


def _op_name(op: Any) -> str:
    """Return the name of the node of an op, which gives no value."""
    return f"^{op.name}" if op.outputs else str(op.name)


def _tensor_name(tensor: Any) -> str:
    """Return the name of the node of a tensor."""
    return str(tensor.name).removesuffix(":0")


def _refuse(*_: Any) -> None:
    raise UsageError("this op of a tf.Graph runs only in a session of its TFGraph")
