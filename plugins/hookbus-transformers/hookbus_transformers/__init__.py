"""Runs hooks of hookbus in the Trainer of transformers, and its callbacks as hooks."""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ModuleNotFoundError(
        "hookbus-transformers needs transformers, which is not installed: pip install "
        "hookbus-transformers",
        name="transformers",
    )

from hookbus_transformers.callback import BusCallback as BusCallback
from hookbus_transformers.hook import from_callback as from_callback
