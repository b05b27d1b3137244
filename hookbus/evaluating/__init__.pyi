"""Lists the public names for evaluating a model, each with the module that defines it."""

from hookbus.random_state import RandomStream as RandomStream
from hookbus.random_state import undisturbed as undisturbed
from hookbus.step.inside import evaluation_run as evaluation_run
from hookbus.swaps import swapped as swapped
