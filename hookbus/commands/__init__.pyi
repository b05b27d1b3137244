"""Lists the public names for authors of commands, each with the module that defines it."""

from hookbus.cli.command import Command as Command
from hookbus.cli.command import CommandLine as CommandLine
from hookbus.cli.command import NamedObject as NamedObject
from hookbus.cli.output import table as table
from hookbus.logs import discard as discard
