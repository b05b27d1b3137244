"""Training loops with hooks as plugins: an event bus around every step."""

from hookbus.bus import Bus
from hookbus.checkpoint.codec import Codec
from hookbus.checkpoint.listener import CheckpointSaverListener
from hookbus.checkpoint.saving import Checkpoints
from hookbus.config import Config
from hookbus.coordinator import Coordinator
from hookbus.errors import (
    CheckpointError,
    CheckpointMismatchError,
    DuplicateNodeError,
    ExitCode,
    FeedConflictError,
    FetchTypeError,
    GraphError,
    GraphFinalizedError,
    HookbusError,
    NoGoodCheckpointError,
    OutOfRangeError,
    PluginError,
    RunAfterStopError,
    SessionClosedError,
    ThreadsStillRunningError,
    UnfedPlaceholderError,
    UnknownNodeError,
    UsageError,
    WriteConflictError,
)
from hookbus.graph import Graph, Node
from hookbus.hook import (
    Outcome,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from hookbus.hookspecs import hookimpl, hookspec
from hookbus.logs import log
from hookbus.monitored import ChiefSessionCreator, MonitoredSession
from hookbus.session import RunMetadata, RunOptions, Session
from hookbus.timer import SecondOrStepTimer
from hookbus.training import MonitoredTrainingSession

__all__ = [
    "Bus",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointSaverListener",
    "Checkpoints",
    "ChiefSessionCreator",
    "Codec",
    "Config",
    "Coordinator",
    "DuplicateNodeError",
    "ExitCode",
    "FeedConflictError",
    "FetchTypeError",
    "Graph",
    "GraphError",
    "GraphFinalizedError",
    "HookbusError",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NoGoodCheckpointError",
    "Node",
    "OutOfRangeError",
    "Outcome",
    "PluginError",
    "RunAfterStopError",
    "RunMetadata",
    "RunOptions",
    "SecondOrStepTimer",
    "Session",
    "SessionClosedError",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "ThreadsStillRunningError",
    "UnfedPlaceholderError",
    "UnknownNodeError",
    "UsageError",
    "WriteConflictError",
    "hookimpl",
    "hookspec",
    "log",
]
