"""Has the metrics of hookbus-estimator, which a graph accumulates batch by batch.

Like the names of ``hookbus`` itself, each is imported when it is first used.
"""

import hookbus

__getattr__, __dir__ = hookbus._lazy(__name__)
