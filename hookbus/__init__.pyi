"""Lists the public names, each with the module that defines it.

Type checkers read this list; at run time ``hookbus`` imports a name from its module when
the name is first used.
"""

from hookbus import errors as errors
from hookbus import evaluating as evaluating
from hookbus import evaluation as evaluation
from hookbus import learning as learning
from hookbus import metrics as metrics
from hookbus import validation as validation
from hookbus.backend.embedded import EmbeddedSession as EmbeddedSession
from hookbus.backend.protocol import OpRecord as OpRecord
from hookbus.backend.protocol import RunMetadata as RunMetadata
from hookbus.backend.protocol import RunOptions as RunOptions
from hookbus.backend.protocol import Session as Session
from hookbus.backend.protocol import ValueRecord as ValueRecord
from hookbus.bus.bus import Bus as Bus
from hookbus.checkpoint.codec import Codec as Codec
from hookbus.checkpoint.files import CheckpointFiles as CheckpointFiles
from hookbus.checkpoint.reader import CheckpointInfo as CheckpointInfo
from hookbus.checkpoint.reader import latest_checkpoint as latest_checkpoint
from hookbus.checkpoint.reader import list_checkpoints as list_checkpoints
from hookbus.config.config import Config as Config
from hookbus.errors import AbortedError as AbortedError
from hookbus.errors import CheckpointError as CheckpointError
from hookbus.errors import ExitCode as ExitCode
from hookbus.errors import GraphError as GraphError
from hookbus.errors import HookbusError as HookbusError
from hookbus.errors import OutOfRangeError as OutOfRangeError
from hookbus.errors import PeerFailedError as PeerFailedError
from hookbus.errors import PluginError as PluginError
from hookbus.errors import RunAfterStopError as RunAfterStopError
from hookbus.errors import TrainingError as TrainingError
from hookbus.errors import UnavailableError as UnavailableError
from hookbus.errors import UsageError as UsageError
from hookbus.estimator.estimator import Estimator as Estimator
from hookbus.estimator.exporter import BestExporter as BestExporter
from hookbus.estimator.exporter import Exporter as Exporter
from hookbus.estimator.exporter import FinalExporter as FinalExporter
from hookbus.estimator.exporter import LatestExporter as LatestExporter
from hookbus.estimator.model_fn import EstimatorSpec as EstimatorSpec
from hookbus.estimator.model_fn import ModeKeys as ModeKeys
from hookbus.estimator.run_config import RunConfig as RunConfig
from hookbus.estimator.train_and_evaluate import EvalSpec as EvalSpec
from hookbus.estimator.train_and_evaluate import TrainSpec as TrainSpec
from hookbus.estimator.train_and_evaluate import train_and_evaluate as train_and_evaluate
from hookbus.graph.graph import Graph as Graph
from hookbus.graph.node import Node as Node
from hookbus.hooks.checkpoints import Checkpoints as Checkpoints
from hookbus.hooks.checkpoints import CheckpointSaverListener as CheckpointSaverListener
from hookbus.hooks.context import SessionRunContext as SessionRunContext
from hookbus.hooks.context import SessionRunValues as SessionRunValues
from hookbus.hooks.event_bus import HookCall as HookCall
from hookbus.hooks.hook import SessionRunArgs as SessionRunArgs
from hookbus.hooks.hook import SessionRunHook as SessionRunHook
from hookbus.hooks.hook_options import HookOptions as HookOptions
from hookbus.hooks.hook_options import Kind as Kind
from hookbus.hooks.markers import hookimpl as hookimpl
from hookbus.hooks.markers import hookspec as hookspec
from hookbus.hooks.option_group import OptionGroup as OptionGroup
from hookbus.hooks.outcome import Outcome as Outcome
from hookbus.hooks.outcome import StopReason as StopReason
from hookbus.hooks.outcome import resumes as resumes
from hookbus.hooks.requests import StopKind as StopKind
from hookbus.hooks.timer import Due as Due
from hookbus.hooks.timer import SecondOrStepTimer as SecondOrStepTimer
from hookbus.lifecycle.creators import ChiefSessionCreator as ChiefSessionCreator
from hookbus.lifecycle.creators import Scaffold as Scaffold
from hookbus.lifecycle.creators import SessionCreator as SessionCreator
from hookbus.lifecycle.creators import WorkerSessionCreator as WorkerSessionCreator
from hookbus.lifecycle.recovery import Recovery as Recovery
from hookbus.logs import log as log
from hookbus.loop.evaluation import Evaluation as Evaluation
from hookbus.loop.step import Step as Step
from hookbus.peers.protocol import Reduction as Reduction
from hookbus.process.coordinator import Coordinator as Coordinator
from hookbus.session.driven import DrivenSession as DrivenSession
from hookbus.session.driven import StepRequest as StepRequest
from hookbus.session.monitored import MonitoredSession as MonitoredSession
from hookbus.session.step_fn import StepContext as StepContext
from hookbus.session.training import MonitoredTrainingSession as MonitoredTrainingSession
from hookbus.session.training import SingularMonitoredSession as SingularMonitoredSession

__version__: str
