# /// script
# dependencies = ["tensorflow-cpu==2.21.0"]
# ///
"""Runs hooks of TensorFlow's MonitoredSession around an op; the bare loop is a Session.

TensorFlow runs on one thread, so that no op waits for another one.
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from worker import Loop, Peer, serve, timed

v1 = tf.compat.v1
ONE = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
MOST = 100


class Empty(v1.train.SessionRunHook):
    def __init__(self, tensor) -> None:
        pass

    def before_run(self, run_context):
        pass

    def after_run(self, run_context, run_values):
        pass


class Fetching(v1.train.SessionRunHook):
    def __init__(self, tensor) -> None:
        self.tensor = tensor

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self.tensor)

    def after_run(self, run_context, run_values):
        self.last = run_values.results


HOOKS = {"empty": Empty, "fetch": Fetching}
GRAPH = tf.Graph()
with GRAPH.as_default():
    GLOBAL_STEP = v1.train.create_global_step()
    VALUES = [v1.get_variable(f"v{number}", initializer=1.0) for number in range(MOST)]
    READ = [tf.identity(value) for value in VALUES]
    TRAIN = GLOBAL_STEP.assign_add(1).op
    START = v1.global_variables_initializer()


def of(session) -> Loop:
    def run(steps: int) -> None:
        for _ in range(steps):
            session.run(TRAIN)

    return timed(run)


def bare() -> Loop:
    session = v1.Session(graph=GRAPH, config=ONE)
    session.run(START)
    return of(session)


def hooked(kind: str, count: int) -> Loop:
    hooks = [HOOKS[kind](tensor) for tensor in READ[:count]]
    with GRAPH.as_default():
        creator = v1.train.ChiefSessionCreator(SCAFFOLD, config=ONE)
        return of(v1.train.MonitoredSession(creator, hooks))


SESSION = bare()
with GRAPH.as_default():
    # The first one makes it final; those after it must not add anything.
    SCAFFOLD = v1.train.Scaffold().finalize()
serve({"TensorFlow, MonitoredSession": Peer(SESSION, hooked, tuple(HOOKS))})
