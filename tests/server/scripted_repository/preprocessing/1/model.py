"""`preprocessing` as in the product, over a stand-in of the model; see tests/server/echo.py."""

import os
import sys

import triton_python_backend_utils as pb_utils

# The stub ignores PYTHONPATH; the fixture says where the tests are.
sys.path.append(os.environ["PROJECT_ROOT"])

from recap.serving.preprocessing import PreprocessingService
from tests.server.echo import ByteProcessor


class TritonPythonModel:
    def initialize(self, args):
        self._service = PreprocessingService(pb_utils, ByteProcessor())

    def execute(self, requests):
        return self._service.execute(requests)

    def finalize(self):
        self._service.close()
