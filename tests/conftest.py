"""What all tests share: the option that renews scripts."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--rewrite`."""
    parser.addoption(
        "--rewrite", action="store_true", help="write the answers of tests/testdata scripts again"
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether scripts are renewed in place of compared."""
    return bool(request.config.getoption("--rewrite"))
