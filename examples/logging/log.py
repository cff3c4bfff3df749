"""What a loader does, in W&B, TensorBoard or Prometheus: waiting, tokens a second, shares and epochs of every source.

python examples/logging/log.py OUT wandb|tensorboard|prometheus
"""

import sys

import numpy as np

import tokenfeed
from tokenfeed import observe


def find_writer(to, folder):
    if to == "wandb":
        import wandb

        run = wandb.init(project="tokenfeed", dir=folder)
        return lambda values, step: run.log(values, step=step)
    if to == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(f"{folder}/events")
        return lambda values, step: [writer.add_scalar(name, value, step) for name, value in values.items()]
    from prometheus_client import Gauge, start_http_server

    start_http_server(9464, "127.0.0.1")
    gauge = Gauge("tokenfeed", "Numbers of a loader, by name.", ["name"])
    return lambda values, step: [gauge.labels(name).set(value) for name, value in values.items()]


folder, to = sys.argv[1:]
with tokenfeed.Writer(f"{folder}/store", columns={"tokens": "uint16"}) as store:
    store.append({"tokens": np.arange(20_000) % 100})
windows = tokenfeed.open(f"{folder}/store").windows(64)
loader = tokenfeed.Loader(tokenfeed.mix({"web": (windows, 0.7), "code": (windows, 0.3)}), 10)
write = find_writer(to, folder)
for step, _ in zip(range(1, 21), loader, strict=False):  # … train …
    if step % 10 == 0:
        write(observe.measure(loader) | observe.to_dict(loader.stats()), step)
