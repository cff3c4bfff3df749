"""`python -m pytest tests/mistakes --record` writes down what each mistake is told now."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="Write tests/mistakes/messages.md instead of comparing.")
