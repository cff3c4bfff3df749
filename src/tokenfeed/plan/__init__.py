"""Which sample comes when: orders, shares, and plans of both."""

from tokenfeed.plan.dealing import Cost
from tokenfeed.plan.listed import Listed
from tokenfeed.plan.orders import Local
from tokenfeed.plan.shares import Stage

__all__ = ["Cost", "Listed", "Local", "Stage"]
