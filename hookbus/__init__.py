"""Training loops with hooks as plugins: an event bus around every step."""

from hookbus import evaluation, learning, metrics
from hookbus.backend.embedded import EmbeddedSession
from hookbus.backend.protocol import OpRecord, RunMetadata, RunOptions, Session, ValueRecord
from hookbus.backend.random_state import undisturbed
from hookbus.bus.bus import Bus
from hookbus.checkpoint.codec import Codec
from hookbus.checkpoint.reader import CheckpointInfo, latest_checkpoint
from hookbus.config.config import Config
from hookbus.errors import (
    AbortedError,
    ArgumentTypeError,
    CheckpointDirectoryError,
    CheckpointError,
    CheckpointMismatchError,
    DeadlineExceededError,
    DuplicateNodeError,
    ExitCode,
    FeedConflictError,
    FetchTypeError,
    GraphError,
    GraphFinalizedError,
    HookbusError,
    NoGoodCheckpointError,
    NotReadyError,
    OutOfRangeError,
    PluginError,
    RunAfterStopError,
    SessionClosedError,
    SessionInterruptedError,
    ThreadsStillRunningError,
    TrainingError,
    UnavailableError,
    UnfedPlaceholderError,
    UnknownNodeError,
    UsageError,
    WriteConflictError,
)
from hookbus.estimator.estimator import Estimator
from hookbus.estimator.exporter import BestExporter, Exporter, FinalExporter, LatestExporter
from hookbus.estimator.model_fn import EstimatorSpec, ModeKeys
from hookbus.estimator.run_config import RunConfig
from hookbus.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.hooks.checkpoints import Checkpoints, CheckpointSaverListener
from hookbus.hooks.context import SessionRunContext, SessionRunValues
from hookbus.hooks.coordinator import Coordinator
from hookbus.hooks.event_bus import Call
from hookbus.hooks.hook import SessionRunArgs, SessionRunHook
from hookbus.hooks.markers import hookimpl, hookspec
from hookbus.hooks.options import OptionGroup
from hookbus.hooks.outcome import Outcome, was_cut_short
from hookbus.hooks.timer import SecondOrStepTimer
from hookbus.logs import log
from hookbus.session.creators import (
    ChiefSessionCreator,
    Scaffold,
    SessionCreator,
    WorkerSessionCreator,
)
from hookbus.session.monitored import MonitoredSession
from hookbus.session.recovery import Recovery
from hookbus.session.step import Step, StepContext
from hookbus.session.training import MonitoredTrainingSession, SingularMonitoredSession
from hookbus.validation import number_in, numeric

__all__ = [
    "AbortedError",
    "ArgumentTypeError",
    "BestExporter",
    "Bus",
    "Call",
    "CheckpointDirectoryError",
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointMismatchError",
    "CheckpointSaverListener",
    "Checkpoints",
    "ChiefSessionCreator",
    "Codec",
    "Config",
    "Coordinator",
    "DeadlineExceededError",
    "DuplicateNodeError",
    "EmbeddedSession",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ExitCode",
    "Exporter",
    "FeedConflictError",
    "FetchTypeError",
    "FinalExporter",
    "Graph",
    "GraphError",
    "GraphFinalizedError",
    "HookbusError",
    "LatestExporter",
    "ModeKeys",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NoGoodCheckpointError",
    "Node",
    "NotReadyError",
    "OpRecord",
    "OptionGroup",
    "OutOfRangeError",
    "Outcome",
    "PluginError",
    "Recovery",
    "RunAfterStopError",
    "RunConfig",
    "RunMetadata",
    "RunOptions",
    "Scaffold",
    "SecondOrStepTimer",
    "Session",
    "SessionClosedError",
    "SessionCreator",
    "SessionInterruptedError",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "SingularMonitoredSession",
    "Step",
    "StepContext",
    "ThreadsStillRunningError",
    "TrainSpec",
    "TrainingError",
    "UnavailableError",
    "UnfedPlaceholderError",
    "UnknownNodeError",
    "UsageError",
    "ValueRecord",
    "WorkerSessionCreator",
    "WriteConflictError",
    "evaluation",
    "hookimpl",
    "hookspec",
    "latest_checkpoint",
    "learning",
    "log",
    "metrics",
    "number_in",
    "numeric",
    "train_and_evaluate",
    "undisturbed",
    "was_cut_short",
]
