"""One thread a process: the models are tiny, and threads of many tests collide."""

import torch

torch.set_num_threads(1)
