"""Lists the public names for evaluating a model, each with the module that defines it."""

from hookbus.random_state import undisturbed as undisturbed
from hookbus.swaps import swapped as swapped
