"""One thread a process: the models are tiny, and the threads of many tests get in the way."""

import torch

torch.set_num_threads(1)
