"""Lists the public names for authors of backends, each with the module that defines it."""

from hookbus.backend.embedded import EmbeddedSession as EmbeddedSession
from hookbus.backend.inputs import Input as Input
from hookbus.backend.library import Library as Library
from hookbus.backend.library import LiveValue as LiveValue
from hookbus.backend.library import Loader as Loader
from hookbus.backend.library import Packed as Packed
from hookbus.backend.library import RandomSource as RandomSource
from hookbus.backend.library import Tracked as Tracked
from hookbus.backend.library import library_named as library_named
from hookbus.backend.library import library_of as library_of
from hookbus.backend.library import plugin_for as plugin_for
from hookbus.backend.program import Program as Program
from hookbus.backend.program import plan as plan
from hookbus.backend.protocol import PREEMPTION_ERRORS as PREEMPTION_ERRORS
from hookbus.backend.protocol import RunMetadata as RunMetadata
from hookbus.backend.protocol import RunOptions as RunOptions
from hookbus.backend.protocol import Session as Session
from hookbus.backend.protocol import ValueRecord as ValueRecord
from hookbus.backend.protocol import create_session as create_session
from hookbus.graph.fetches import merge as merge
from hookbus.graph.fetches import structure_of as structure_of
from hookbus.graph.fetches import unite_feeds as unite_feeds
from hookbus.graph.graph import Graph as Graph
from hookbus.graph.node import Node as Node
from hookbus.graph.operation import Operation as Operation
