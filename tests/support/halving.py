"""A hook that has a loop do a step again with half of the batch."""

from __future__ import annotations

from typing import ClassVar

import attrs

from hookbus import HookOptions, SessionRunHook, hookimpl


@attrs.define(eq=False)
class HalveHook(SessionRunHook):
    """Halves the batch when the memory is used up, from then on.

    Attributes:
        error: the class of the error that tells it.
        parts: by how much it divides.
        told: the errors of the steps that failed.
    """

    options = HookOptions(rolls_back="step")
    error: type[Exception] = MemoryError
    parts: int = 1
    told: list[BaseException] = attrs.field(factory=list, init=False)

    def begin(self, graph) -> None:
        graph.wrap("batch", self.part, keeps_form=False)

    def part(self, batch):
        """Return the first part of a batch, or of each array of a list of them."""
        if hasattr(batch[0], "shape") and batch[0].shape:
            return [each[: len(each) // self.parts] for each in batch]
        return batch[: len(batch) // self.parts]

    @hookimpl
    def step_failed(self, run_context, exception) -> None:
        self.told.append(exception)
        if isinstance(exception, self.error):
            self.parts *= 2
            run_context.request_rollback("out of memory", to="step")

    state_form: ClassVar[dict[str, type]] = {"parts": int}

    def state_dict(self):
        return {"parts": self.parts}

    def load_state_dict(self, state) -> None:
        self.parts = state["parts"]
