"""Settings for all tests."""

from hypothesis import settings

# Examples vary in size a hundredfold: a time limit for each says nothing.
settings.register_profile("onnx_ai_rt", deadline=None, print_blob=True)
settings.load_profile("onnx_ai_rt")
