"""`recap_decoder` as in the product, over a stand-in of the model; see tests/server/echo.py."""

import os
import sys

import triton_python_backend_utils as pb_utils

# The stub ignores PYTHONPATH; the fixture says where the tests are.
sys.path.append(os.environ["PROJECT_ROOT"])

from recap.serving.decoder import DecoderService
from tests.server.echo import build_echo_scheduler


class TritonPythonModel:
    def initialize(self, args):
        self._service = DecoderService.load(pb_utils, args, build_echo_scheduler)

    def execute(self, requests):
        self._service.execute(requests)

    def finalize(self):
        self._service.close()
