"""Leaves out the module whose import needs PyTorch: its doctests have nothing to run."""

collect_ignore = ["torch_trainings.py", "zoo_torch.py"]
