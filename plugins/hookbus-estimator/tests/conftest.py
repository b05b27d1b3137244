"""Gives the tests of the commands an Estimator, plugins, and the command in a process."""

from __future__ import annotations

from tests.support.cli import about as about
from tests.support.cli import estimator as estimator
from tests.support.cli import hookbus as hookbus
from tests.support.cli import install as install
from tests.support.cli import process as process
from tests.support.cli import site as site
from tests.support.cli import trained as trained
from tests.support.cli import watcher as watcher
from tests.support.handlers import ctrl_c as ctrl_c
