"""Settings for all tests."""

import os

import pytest
from hypothesis import settings

# Examples vary in size a hundredfold: a time limit for each says nothing. A build server tries the same ones each time,
# so that it turns red by a change and not by luck; everywhere else they are new ones.
settings.register_profile("onnx_ai_rt", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("onnx_ai_rt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="give long tests their full length")
