"""Train a small model with JAX, on all devices of all processes. Kill it, and start it again on any number of these.

    python examples/jax/train.py STORE --checkpoint DIR

    python examples/jax/train.py STORE --checkpoint DIR --coordinator localhost:1234 --processes 2 --process 0 &
    python examples/jax/train.py STORE --checkpoint DIR --coordinator localhost:1234 --processes 2 --process 1

The batch of a step is one for all processes together, so losses do not depend on their number, but for the order of
sums. DIR is one folder for all of them. At the end every validation window is looked at exactly once.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tokenfeed
import tokenfeed.jax  # import

LEARNING_RATE = 0.5


def start(key, vocabulary, width):
    """Weights of a model that looks at one token: an embedding, a layer, a head."""
    keys = jax.random.split(key, 3)
    shapes = {"tokens": (vocabulary, width), "layer": (width, 4 * width), "head": (4 * width, vocabulary)}
    return {
        name: jax.random.normal(each, shape) / shape[0] ** 0.5
        for each, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def losses(weights, inputs, targets):
    """The loss of every target."""
    logits = jax.nn.gelu(weights["tokens"][inputs] @ weights["layer"]) @ weights["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]


@partial(jax.jit, donate_argnums=0)
def train(weights, inputs, targets):
    """Weights after a step of gradient descent, and the loss before it."""
    loss, gradients = jax.value_and_grad(lambda w: losses(w, inputs, targets).mean())(weights)
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, gradients), loss


@jax.jit
def evaluate(weights, inputs, targets, mask):
    """The sum of losses that count, and their number."""
    return jnp.where(mask, losses(weights, inputs, targets), 0).sum(), mask.sum()


def save(path, weights, loader):
    """Write a checkpoint, whole or not at all. Weights are the same on every process; so is the loader's state."""
    if jax.process_index() == 0:
        with path.with_suffix(".partial").open("wb") as file:
            state = json.dumps(loader.state_dict())  # tokenfeed
            np.savez(file, state=state, **{name: np.asarray(weight) for name, weight in weights.items()})
            os.fsync(file.fileno())
        path.with_suffix(".partial").replace(path)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="to write to, and resume from")
    parser.add_argument("--steps", type=int, default=1000, help="in all, with those before a resume")
    parser.add_argument("--every", type=int, default=100, help="steps per checkpoint")
    parser.add_argument("--batch-size", type=int, default=16, help="windows per step, over all processes")
    parser.add_argument("--length", type=int, default=256, help="tokens per window")
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--trace", type=Path, metavar="DIR", help="note there which samples each process trains on")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0; without it there is one process")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int, metavar="NUMBER", help="which of them this is")
    return parser.parse_args()


def main():
    options = parse_options()
    if options.coordinator:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    place = tokenfeed.jax.data_parallel(rows)  # rank and world size
    batch_size = options.batch_size // place["world_size"]
    windows = tokenfeed.open(options.store, split="train").windows(options.length)  # tokenfeed
    loader = tokenfeed.Loader(windows, batch_size, **place)  # tokenfeed

    step = 0
    options.checkpoint.mkdir(parents=True, exist_ok=True)
    if newest := max(options.checkpoint.glob("step-*.npz"), default=None):
        step, saved = int(newest.stem.removeprefix("step-")), dict(np.load(newest))
        loader.load_state_dict(json.loads(str(saved.pop("state"))))  # tokenfeed
        weights = {name: jax.make_array_from_process_local_data(everywhere, saved[name]) for name in saved}
    else:
        begin = partial(start, vocabulary=options.vocabulary, width=options.width)
        weights = jax.jit(begin, out_shardings=everywhere)(jax.random.key(0))

    for batch in tokenfeed.jax.to_arrays(loader, rows):  # tokenfeed
        weights, loss = train(weights, batch.inputs, batch.targets)
        if options.trace:
            options.trace.mkdir(parents=True, exist_ok=True)
            with (options.trace / f"rank-{place['rank']}.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "samples": batch.host.samples.tolist()}) + "\n")
        step += 1
        print(f"step {step}: loss {loss:.6f}, samples {batch.host.samples.tolist()}", flush=True)
        if step % options.every == 0 or step == options.steps:
            save(options.checkpoint / f"step-{step:09}.npz", weights, loader)
        if step == options.steps:
            break

    validation = tokenfeed.open(options.store, split="val").windows(options.length)
    loader = tokenfeed.Loader(validation, batch_size, epochs=1, shuffle=False, **place)
    sums = [evaluate(weights, *batch, batch.loss_mask) for batch in tokenfeed.jax.to_arrays(loader, rows)]
    total, count = (sum(float(each) for each in column) for column in zip(*sums, strict=True))
    print(f"validation: loss {total / count:.6f} over {count / options.length:g} windows of {len(validation)}")


if __name__ == "__main__":
    main()
