"""Has the functions of TF-Slim that train, from hookbus-estimator.

Like the names of ``hookbus`` itself, each is imported when it is first used.
"""

import hookbus

__getattr__, __dir__ = hookbus._lazy(__name__)
