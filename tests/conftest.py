"""Fixtures and profiles shared by all tests."""

import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tiers
from plain import PlainStore, make_documents

settings.register_profile(
    "full", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.register_profile("fast", parent=settings.get_profile("full"), max_examples=10)
settings.register_profile("long", parent=settings.get_profile("full"), max_examples=3000)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in jobs that a shell runs in the background; children would
    signal.signal(signal.SIGINT, signal.default_int_handler)  # inherit it, and tests that interrupt them would wait


# A file runs in one worker, so that few kernels are compiled by both. Files that share something costly are one group.
# The marker of pytest-xdist 3.8 for this does nothing under pytest 9.2.
GROUPS = {
    "tests/e2e/ui/": "page",  # stores, servers and a browser
    "tests/e2e/test_prepare_ray.py": "ray",  # one cluster at a time
    "tests/e2e/test_docs.py::test_page_runs[guides/ray]": "ray",
    "tests/e2e/test_docs.py": "fork server",  # a process that has everything imported
    "tests/e2e/test_examples.py": "fork server",
    "tests/e2e/integrations/": "fork server",
    "tests/e2e/test_train_ddp.py": "fork server",
    "tests/unit/torch/test_adapters.py::test_rank_of_a_device_mesh": "fork server",
}


def group_of(nodeid: str) -> str:
    """Where several prefixes fit, the first says it."""
    return next((group for prefix, group in GROUPS.items() if nodeid.startswith(prefix)), nodeid.split("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByGroup(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    return ByGroup(config, log)


WHOLLY_SLOW = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """In the fast tier, files of slow tests alone are not imported: one takes five seconds in every worker."""
    if collection_path.suffix == ".py" and config.getoption("markexpr") == "not slow":
        return True if WHOLLY_SLOW.search(collection_path.read_text()) else None
    return None


def pytest_configure(config):
    """Slow tests are deselected by default (pyproject.toml); where they are not, everything is tried at full length."""
    tiers.select(full=config.getoption("markexpr") != "not slow")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", tiers.pick("fast", "full")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Where NO_SKIPS is set, as CI does, a test that skips itself has failed."""
    report = yield
    if report.skipped and os.environ.get("NO_SKIPS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} was skipped, and NO_SKIPS is set: {call.excinfo.value if call.excinfo else ''}"
        )
    return report


@pytest.fixture
def plain() -> PlainStore:
    """120 documents of 0 to 400 items."""
    return make_documents([(7 * number * number) % 401 for number in range(120)])


@pytest.fixture
def store_path(plain: PlainStore, tmp_path: Path) -> Path:
    """The same documents as a store of several shards."""
    path = tmp_path / "store"
    plain.write(path, shard_bytes=40_000, name="part")
    return path
