"""Leaves out the modules that need PyTorch, JAX or Ignite: they have no doctests."""

collect_ignore_glob = [
    "in_ignite.py",
    "torch_pictures.py",
    "torch_trainings.py",
    "zoo_cuda.py",
    "zoo_torch.py",
    "zoo_jax*.py",
    "jax_parts.py",
]
