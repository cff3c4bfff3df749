"""Plans without data: what tests of orders need."""

from tokenfeed.plan.plan import Plan, PlanSource
from tokenfeed.store.spec import ViewSpec

WINDOWS = {"kind": "windows", "length": 8, "extra": 1}


def source(name: str, num_samples: int, *, group: int = 1, **fields) -> PlanSource:
    """A source of windows, in groups of `group` samples."""
    view = WINDOWS if group == 1 else {**WINDOWS, "group": 8 * group}
    return PlanSource(name, num_samples, f"data of {name}", ViewSpec.from_json(view), **fields)


def plan_over(num_samples: int, *, group: int = 1, **options) -> Plan:
    """The plan over one view."""
    return Plan([source("", num_samples, group=group)], **options)
