"""The option that writes transcripts anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what happened into the scenarios' files")


@pytest.fixture
def is_rewriting(request: pytest.FixtureRequest) -> bool:
    # Where all tests are run this file is read too late to add an option.
    return bool(request.config.getoption("--rewrite", default=False))
