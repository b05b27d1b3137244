"""Lists the public names for authors of trackers, each with the module that defines it."""

from hookbus.tracking.journal import Journal as Journal
from hookbus.tracking.line_file import LineFile as LineFile
from hookbus.tracking.recording import RecordingHook as RecordingHook
from hookbus.tracking.records import Record as Record
from hookbus.tracking.records import RunInfo as RunInfo
from hookbus.tracking.tracker import Tracker as Tracker
