"""The process group that `torchrun` would make, for peers that ask torch.distributed who they are."""

import torch.distributed
from tokens import Job


def join(job: Job) -> None:
    if job.world_size > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", rank=job.rank, world_size=job.world_size)
