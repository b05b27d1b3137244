"""A run with DistributedDataParallel that is clipped, by hand or by the plugin."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from hookbus_gradient_clipping import GradientClippingHook
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hookbus import Config, MonitoredSession

RANK = int(os.environ.get("RANK", "0"))


def main(folder: Path, hooked: bool) -> None:
    """Train, and write a digest of the weights."""
    distributed.init_process_group("gloo")
    torch.manual_seed(3)
    x = torch.randn(2, 10, 8, 4)[RANK]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    config = Config(autoload=False, header=False)
    with contextlib.ExitStack() as stack:
        session = None
        if hooked:
            hooks = [GradientClippingHook(0.01)]
            session = stack.enter_context(MonitoredSession(hooks=hooks, config=config))
            session.track(model=model, optimizer=optimizer)
        for batch in x if session is None else session.iterate(x):
            with contextlib.nullcontext() if session is None else session.step():
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                if not hooked:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
    tensors = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    left = {"weights": hashlib.sha256(tensors).hexdigest()}
    (folder / f"rank-{RANK}.json").write_text(json.dumps(left), "utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["hooked"])
