# /// script
# dependencies = []
# ///
"""Calls the hooks directly: two bound methods of each, in plain loops around the step."""

from worker import Loop, Peer, over_batches, plain, serve, step


class Hook:
    def before(self, context):
        pass

    def after(self, context, values):
        pass


def hooked(kind: str, count: int) -> Loop:
    hooks = [Hook() for _ in range(count)]
    before, after = [h.before for h in hooks], [h.after for h in hooks]
    context = object()

    def train(batches):
        for batch in batches:
            for call in before:
                call(context)
            values = step(batch)
            for call in after:
                call(context, values)

    return over_batches(train)


serve({"direct calls": Peer(over_batches(plain), hooked)})
