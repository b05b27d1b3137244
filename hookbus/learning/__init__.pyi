"""Lists the public names, each with the module that defines it."""

from hookbus_estimator.learning import train as train
from hookbus_estimator.learning import train_step as train_step

from hookbus.session.learning_rate import learning_rate_variable as learning_rate_variable
