"""Lists the public names, each with the module that defines it."""

from hookbus_estimator.metrics import Metric as Metric
from hookbus_estimator.metrics import accuracy as accuracy
from hookbus_estimator.metrics import auc as auc
from hookbus_estimator.metrics import mean as mean
from hookbus_estimator.metrics import precision as precision
from hookbus_estimator.metrics import recall as recall
