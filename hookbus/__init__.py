"""Training loops with hooks as plugins: an event bus around every step."""

from hookbus import evaluation, learning, metrics
from hookbus.aside import undisturbed
from hookbus.bus import Bus
from hookbus.checkpoint.codec import Codec
from hookbus.checkpoint.latest import CheckpointInfo, latest_checkpoint
from hookbus.checkpoint.listener import CheckpointSaverListener
from hookbus.checkpoint.saving import Checkpoints
from hookbus.config import Config
from hookbus.coordinator import Coordinator
from hookbus.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
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
from hookbus.estimation.alternating import EvalSpec, TrainSpec, train_and_evaluate
from hookbus.estimation.exporting import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from hookbus.estimation.runconfig import RunConfig
from hookbus.estimation.spec import EstimatorSpec, ModeKeys
from hookbus.estimator import Estimator
from hookbus.graph import Graph
from hookbus.hook import (
    Outcome,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    was_cut_short,
)
from hookbus.hookspecs import hookimpl, hookspec
from hookbus.logs import log
from hookbus.monitored import MonitoredSession
from hookbus.node import Node
from hookbus.observing import Call
from hookbus.options import OptionGroup
from hookbus.ownloop import Step
from hookbus.records import OpRecord, ValueRecord
from hookbus.recovery import Recovery
from hookbus.scaffold import Scaffold
from hookbus.session import EmbeddedSession, RunMetadata, RunOptions, Session
from hookbus.singular import SingularMonitoredSession
from hookbus.step_fn import StepContext
from hookbus.timer import SecondOrStepTimer
from hookbus.training import MonitoredTrainingSession
from hookbus.validating import number_in, numeric

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
