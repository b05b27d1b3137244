"""Helps plugins that write files: whole or not at all, and never where a link leads.

Like the names of ``hookbus`` itself, each is imported when it is first used.
"""

import hookbus

__getattr__, __dir__ = hookbus._lazy(__name__)
