"""Settings for all tests."""

import pytest
from hypothesis import settings

# Examples vary in size a hundredfold: a time limit for each says nothing.
settings.register_profile("onnx_ai_rt", deadline=None, print_blob=True)
settings.load_profile("onnx_ai_rt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="give long tests their full length")
