"""Runs hooks of hookbus in Lightning's Trainer."""

try:
    import lightning.pytorch as _lightning
except ImportError as error:
    raise ImportError(
        "hookbus-lightning needs Lightning, which cannot be imported "
        f"({error}): pip install lightning"
    ) from error

from hookbus_lightning.callback import BusCallback as BusCallback

del _lightning
