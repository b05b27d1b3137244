"""Runs hooks of hookbus in Lightning's Trainer."""

from hookbus_lightning.callback import BusCallback as BusCallback
