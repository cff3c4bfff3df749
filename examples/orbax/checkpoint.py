"""The place in the data in checkpoints of Orbax, beside the weights: JSON of about 200 bytes.

manager = ocp.CheckpointManager(folder)
save(manager, step, weights, loader)                 # in the background, as Orbax does it
weights = restore(manager, weights, loader)          # the latest step; any number of processes, any batch size

`loader` is a Loader, or what `tokenfeed.jax.to_arrays` makes of one. A stream on several processes has a state on each,
and Orbax keeps that of one: prepare a store.
"""

import orbax.checkpoint as ocp


def save(manager, step, weights, loader):
    data = ocp.args.JsonSave(loader.state_dict())
    manager.save(step, args=ocp.args.Composite(weights=ocp.args.StandardSave(weights), data=data))


def restore(manager, weights, loader, step=None):
    wanted = ocp.args.Composite(weights=ocp.args.StandardRestore(weights), data=ocp.args.JsonRestore())
    found = manager.restore(step, args=wanted)
    loader.load_state_dict(found["data"])
    return found["weights"]
