"""Two devices of the CPU, so that arrays can be on another one, or on both."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # read once, by JAX
