"""Trains, evaluates and predicts in one call: Estimator, and the functions of TF-Slim.

``hookbus`` has these names as well, and the modules ``hookbus.learning``,
``hookbus.evaluation`` and ``hookbus.metrics``, where this distribution is installed.
"""

from hookbus_estimator.estimator import Estimator
from hookbus_estimator.exporter import BestExporter, Exporter, FinalExporter, LatestExporter
from hookbus_estimator.model_fn import EstimatorSpec, ModeKeys
from hookbus_estimator.run_config import RunConfig
from hookbus_estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate

__all__ = [
    "BestExporter",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "train_and_evaluate",
]
