"""Lists the public names, each with the module that defines it."""

from hookbus_estimator.evaluation import StopAfterNEvalsHook as StopAfterNEvalsHook
from hookbus_estimator.evaluation import SummaryAtEndHook as SummaryAtEndHook
from hookbus_estimator.evaluation import checkpoints_iterator as checkpoints_iterator
from hookbus_estimator.evaluation import evaluate_once as evaluate_once
from hookbus_estimator.evaluation import evaluate_repeatedly as evaluate_repeatedly
from hookbus_estimator.evaluation import evaluation_loop as evaluation_loop
from hookbus_estimator.evaluation import wait_for_new_checkpoint as wait_for_new_checkpoint
