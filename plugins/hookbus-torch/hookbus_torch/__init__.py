"""Trains PyTorch models on hookbus."""

from hookbus_torch.graph import TorchGraph as TorchGraph
