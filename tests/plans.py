"""Plans without data: what tests of orders need."""

from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.store.spec import ViewSpec

WINDOWS = {"kind": "windows", "length": 8, "extra": 1}


def source(name: str, num_samples: int, **fields) -> PlanSource:
    """A source of windows."""
    return PlanSource(name, num_samples, f"data of {name}", ViewSpec.from_json(WINDOWS), **fields)


def plan_over(num_samples: int, **options) -> Plan:
    """The plan over one view."""
    return Plan([source("", num_samples)], **options)
