"""Finds the backends that the suite tests."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection

import attrs

from hookbus.errors import UsageError, did_you_mean, summary_of, text_of
from hookbus.graph.graph import Graph
from hookbus.testing.backend_model import BackendModel


@attrs.frozen(eq=False)
class Backend:
    """A backend under test.

    Attributes:
        spelled: ``module:factory``, as it was given.
        model: builds graphs of the backend.
    """

    spelled: str
    model: BackendModel

    @classmethod
    def named(cls, spelled: str) -> Backend:
        """Return the backend of an option, after making an empty graph of it.

        Raises:
            UsageError: it cannot be imported or called, or makes something else.
        """
        try:
            factory = pkgutil.resolve_name(spelled)
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"--backend {spelled}: cannot import it ({summary_of(error)}); expected "
                "MODULE:FACTORY of an installed module: pip install -e ."
            ) from error
        try:
            made = factory()
            model = made if isinstance(made, BackendModel) else BackendModel(factory)
            graph = model.graph()
        except Exception as error:
            raise UsageError(
                f"--backend {spelled}: cannot make a graph ({text_of(error)}); expected a "
                "function or class that is called without arguments"
            ) from error
        if not isinstance(graph, Graph):
            raise UsageError(
                f"--backend {spelled}: it makes a {type(graph).__name__}; expected a "
                "hookbus.Graph or a hookbus.testing.BackendModel"
            )
        return cls(spelled, model)

    def check_exceptions(self, rules: Collection[str]) -> None:
        """Check that the exceptions of the model are rules.

        Raises:
            UsageError: one is not.
        """
        for name in self.model.exceptions.keys() - rules:
            raise UsageError(
                f"--backend {self.spelled}: its exceptions name {name!r}, which is no rule "
                f"of the suite{did_you_mean(name, rules)}"
            )
