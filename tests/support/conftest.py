"""Leaves out the modules whose import needs PyTorch or JAX: they have no doctests."""

collect_ignore_glob = [
    "torch_pictures.py",
    "torch_trainings.py",
    "zoo_cuda.py",
    "zoo_torch.py",
    "zoo_jax*.py",
    "jax_parts.py",
]
