"""Trains JAX models on hookbus."""

try:
    import jax as jax
except ImportError as error:
    raise ImportError(
        f"hookbus-jax needs JAX, which cannot be imported ({error}): pip install jax, or "
        '"jax[cuda12]" for NVIDIA GPUs, "jax[tpu]" for TPUs'
    ) from error

from hookbus_jax.graph import JaxGraph as JaxGraph
