# /// script
# dependencies = ["pluggy==1.7.0"]
# ///
"""Calls hooks through a plain pluggy manager, before and after each step."""

import pluggy
from worker import Loop, Peer, over_batches, plain, serve, step

spec, impl = pluggy.HookspecMarker("peers"), pluggy.HookimplMarker("peers")


class Events:
    @spec
    def before(self, context):
        pass

    @spec
    def after(self, context, values):
        pass


class Hook:
    @impl
    def before(self, context):
        pass

    @impl
    def after(self, context, values):
        pass


def hooked(kind: str, count: int) -> Loop:
    manager = pluggy.PluginManager("peers")
    manager.add_hookspecs(Events)
    for _ in range(count):
        manager.register(Hook())
    before, after, context = manager.hook.before, manager.hook.after, object()

    def train(batches):
        for batch in batches:
            before(context=context)
            values = step(batch)
            after(context=context, values=values)

    return over_batches(train)


serve({"pluggy": Peer(over_batches(plain), hooked)})
