"""Helps plugins that send the records of a run to a tracker, each of them once.

Like the names of ``hookbus`` itself, each is imported when it is first used.
"""

import hookbus

__getattr__, __dir__ = hookbus._lazy(__name__)
