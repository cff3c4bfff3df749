"""Counts the faults that were injected, and says at the end what came of them."""

from collections import Counter, defaultdict

import pytest

from injection import ALL_POINTS


@pytest.fixture
def tell(record_property):
    """Call it with what `inject_everywhere` returned: it is kept for the summary, and must be without problems."""

    def keep(report):
        record_property("faults", report["rows"])
        problems = report["problems"]
        assert not problems, f"{len(problems)} of {report['points']} faults:\n\n" + "\n".join(problems[:20])
        assert report["points"] > 0 or ALL_POINTS  # there, a scene may make no call that some fault could strike

    return keep


def pytest_terminal_summary(terminalreporter):
    """Faults by kind, and by what came of each."""
    outcomes = defaultdict(Counter)
    for reports in list(terminalreporter.stats.values()):
        for report in reports:
            told = report.user_properties if getattr(report, "when", None) == "call" else ()
            for name, rows in told:
                for kind, outcome, count in rows if name == "faults" else ():
                    outcomes[kind][outcome] += count
    if not outcomes:
        return
    outcomes["all"] = sum(outcomes.values(), Counter())
    columns = sorted(outcomes["all"])
    terminalreporter.section("injected faults")
    terminalreporter.line(f"{'kind':8}{'tried':>10}" + "".join(f"{column:>12}" for column in columns))
    for kind, counts in outcomes.items():
        cells = "".join(f"{counts[column]:12,}" for column in columns)
        terminalreporter.line(f"{kind:8}{counts.total():10,}{cells}")
