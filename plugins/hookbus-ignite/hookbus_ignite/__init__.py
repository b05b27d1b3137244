"""Runs hooks of hookbus in an Engine of PyTorch-Ignite."""

try:
    import ignite as ignite
except ImportError as error:
    raise ImportError(
        f"hookbus-ignite needs PyTorch-Ignite, which cannot be imported ({error}): "
        "pip install pytorch-ignite"
    ) from error

from hookbus_ignite.attaching import attach as attach
from hookbus_ignite.engine_bus import EngineBus as EngineBus
