"""Leaves out the modules that need a library: they have no doctests."""

collect_ignore_glob = [
    "in_ignite.py",
    "in_keras.py",
    "in_lightning.py",
    "in_mlflow.py",
    "in_transformers.py",
    "in_wandb.py",
    "one_weight.py",
    "torch_pictures.py",
    "torch_trainings.py",
    "tracked_training.py",
    "wandb_server.py",
    "zoo_cuda.py",
    "zoo_torch.py",
    "zoo_jax*.py",
    "jax_parts.py",
]
