"""Helps authors of commands: names for entry points of the group ``hookbus.command``.

Like the names of ``hookbus`` itself, each is imported when it is first used.
"""

import hookbus

__getattr__, __dir__ = hookbus._lazy(__name__)
