"""The three services over a fake Triton: right tensors, one clear error each, nothing leaks."""

import json
import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

from recap.errors import SettingsError
from recap.serving import contract
from recap.serving.decoder import DecoderService
from recap.serving.failures import require_one_instance
from recap.serving.installation import PACKAGE_ROOT
from recap.serving.preprocessing import PreprocessingService
from recap.serving.vision import VisionService

from .fakes import (
    Backend,
    Encoder,
    InferenceResponse,
    Logger,
    Processor,
    Request,
    Scheduler,
    TritonError,
    TritonModelException,
    strings,
)

IDS = np.array([104, 105], np.int32)
WAIT_S = 10


def true() -> np.ndarray:
    return np.array([True])


def message(response: InferenceResponse) -> str:
    assert response.error is not None
    assert "secret" not in response.error.message()
    return response.error.message()


class TestPreprocessing:
    service = PreprocessingService(Backend, Processor())

    def answer(self, **inputs: np.ndarray) -> InferenceResponse:
        return self.service.execute([Request(inputs, "id-1")])[0]

    def test_outputs_follow_the_contract(self) -> None:
        answer = self.answer(text_input=strings("hi"), image=strings(b"abc", b"d"))
        model = contract.MODELS[contract.PREPROCESSING]
        assert set(answer.outputs) == {tensor.name for tensor in model.outputs}
        for name, value in answer.outputs.items():
            assert value.dtype == contract.DTYPES[model.tensor(name).dtype]
        assert answer.outputs["input_ids"].tolist() == [104, 105]
        assert answer.outputs["pixel_values"].shape == (1, 4, 3)
        assert answer.outputs["image_layout"].tolist() == [[[1, 1, 3], [1, 1, 1]]]
        assert answer.outputs["image_digest"].tolist() == [b"digest0", b"digest1"]

    def test_text_only_has_zero_rows(self) -> None:
        answer = self.answer(text_input=strings("hi"))
        assert answer.outputs["pixel_values"].shape == (1, 0, 3)
        assert answer.outputs["image_layout"].shape == (1, 0, 3)

    def test_stop_needs_no_prompt(self) -> None:
        answer = self.answer(stop=true())
        assert answer.error is None
        assert [answer.outputs["input_ids"].size, answer.outputs["pixel_values"].size] == [0, 0]

    @pytest.mark.parametrize(
        ("inputs", "said"),
        [
            ({}, "text_input: must be given"),
            ({"text_input": strings(b"\xff")}, "text_input: must be UTF-8"),
            ({"text_input": IDS[:1]}, "text_input: must be STRING of shape [1], got int32"),
            ({"text_input": strings("a", "b")}, "text_input: must be STRING of shape [1]"),
            ({"text_input": strings("a"), "raw_prompt": IDS[:1]}, "raw_prompt: must be BOOL"),
            ({"text_input": strings("a"), "image": strings(b"")}, "image: must not be empty"),
            ({"text_input": strings("defect")}, "internal error"),
        ],
    )
    def test_bad_input_is_one_clear_error(self, inputs: dict, said: str) -> None:
        assert message(self.answer(**inputs)).startswith(said)

    def test_one_bad_request_spares_the_others(self) -> None:
        good = Request({"text_input": strings("hi")})
        answers = self.service.execute([good, Request({}), good])
        assert [answer.error is None for answer in answers] == [True, False, True]


class TestVision:
    @staticmethod
    def request(rows: int, value: float = 1.0) -> Request:
        pixels = np.full((1, rows, 3), value, np.float32)
        layout = np.ones((1, min(rows, 1), 3), np.int64)
        return Request({"pixel_values": pixels, "image_layout": layout})

    def test_batches_requests_of_different_sizes(self) -> None:
        encoder = Encoder()
        answers = VisionService(Backend, encoder).execute(
            [self.request(2), self.request(0), self.request(5)]
        )
        shapes = [answer.outputs["image_features"].shape for answer in answers]
        assert shapes == [(1, 2, 4), (1, 0, 4), (1, 5, 4)]
        assert encoder.batches == [2]

    def test_without_images_the_tower_rests(self) -> None:
        encoder = Encoder()
        VisionService(Backend, encoder).execute([self.request(0)])
        assert encoder.batches == []

    def test_one_that_breaks_the_batch_goes_alone(self) -> None:
        answers = VisionService(Backend, Encoder()).execute(
            [self.request(2), self.request(3, -1.0), self.request(4)]
        )
        assert [answer.error is None for answer in answers] == [True, False, True]
        assert message(answers[1]).startswith("internal error")
        assert answers[2].outputs["image_features"].shape == (1, 4, 4)

    def test_a_layout_without_pixels_reaches_the_encoder(self) -> None:
        encoder = Encoder()
        pixels, layout = np.zeros((1, 0, 3), np.float32), np.ones((1, 1, 3), np.int64)
        VisionService(Backend, encoder).execute(
            [Request({"pixel_values": pixels, "image_layout": layout})]
        )
        assert encoder.batches == [1], "the encoder knows what does not fit"

    def test_refuses_a_batch_in_one_request(self) -> None:
        pixels = np.zeros((2, 3, 3), np.float32)
        request = Request({"pixel_values": pixels, "image_layout": np.ones((2, 1, 3), np.int64)})
        (answer,) = VisionService(Backend, Encoder()).execute([request])
        assert message(answer).startswith("pixel_values: must be FP32 of shape [1, -1, -1]")


class TestDecoder:
    @pytest.fixture
    def scheduler(self) -> Scheduler:
        return Scheduler(pause_s=0.002)

    @pytest.fixture
    def service(self, scheduler: Scheduler) -> Iterator[DecoderService]:
        service = DecoderService(Backend, scheduler, poll_s=0.005)
        yield service
        service.close()

    @staticmethod
    def finish(service: DecoderService, request: Request) -> InferenceResponse:
        service.execute([request])
        assert request.sender.ended.wait(WAIT_S)
        return request.sender.responses[-1]

    def test_streams(self, service: DecoderService) -> None:
        request = Request({"input_ids": IDS, "stream": true()})
        last = self.finish(service, request)
        assert request.sender.text == "hi" and len(request.sender.responses) == 3
        assert last.outputs["finish_reason"][0] == b"length"

    def test_does_not_stream_by_default(self, service: DecoderService) -> None:
        request = Request({"input_ids": IDS, "max_tokens": np.array([1], np.int32)})
        self.finish(service, request)
        assert request.sender.text == "h" and len(request.sender.responses) == 1

    def test_zero_rows_are_no_images(self, service: DecoderService, scheduler: Scheduler) -> None:
        seen = []
        submit = scheduler.submit
        scheduler.submit = lambda request, sink: seen.append(request) or submit(request, sink)  # type: ignore[method-assign,func-returns-value]
        for rows in (0, 3):
            features = np.ones((1, rows, 4), np.float32)
            layout = np.ones((1, min(rows, 1), 3), np.int64)
            inputs = {"input_ids": IDS, "image_features": features, "image_layout": layout}
            self.finish(service, Request(inputs))
        assert seen[0].features is None and seen[0].image_layout is None
        assert seen[1].features.shape == (3, 4) and seen[1].image_layout.shape == (1, 3)

    @pytest.mark.parametrize(
        ("inputs", "said"),
        [
            ({}, "input_ids: is required"),
            ({"input_ids": IDS[None]}, "input_ids: must be INT32 of shape [-1], got int32"),
            ({"input_ids": IDS, "max_tokens": np.array([0], np.int32)}, "max_tokens: must be"),
            ({"input_ids": IDS, "stop": true()}, "stop: needs the id"),
        ],
    )
    def test_bad_input_is_one_clear_error(
        self, service: DecoderService, inputs: dict, said: str
    ) -> None:
        answer = self.finish(service, Request(inputs))
        assert message(answer).startswith(said)
        assert answer.error is not None and answer.error.code() == TritonError.INVALID_ARG

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_features_that_are_no_numbers_are_refused(
        self, service: DecoderService, value: float
    ) -> None:
        features = np.ones((1, 3, 4), np.float32)
        features[0, 2, 3] = value
        inputs = {"input_ids": IDS, "image_features": features}
        assert message(self.finish(service, Request(inputs))).startswith("image_features: must")

    def test_stop_ends_all_requests_with_the_id(self, service: DecoderService) -> None:
        running = [
            Request({"input_ids": np.full(5000, 97, np.int32), "stream": true()}, "same")
            for _ in range(2)
        ]
        service.execute(running)
        stop = Request({"input_ids": IDS[:0], "stop": true()}, "same")
        answer = self.finish(service, stop)
        assert (answer.outputs["text_output"][0], answer.outputs["finish_reason"][0]) == (
            b"",
            b"cancelled",
        )
        for request in running:
            assert request.sender.ended.wait(WAIT_S)
            assert request.sender.responses[-1].outputs["finish_reason"][0] == b"cancelled"
            assert request.sender.finals == 1

    def test_stop_of_an_unknown_id(self, service: DecoderService) -> None:
        answer = self.finish(service, Request({"input_ids": IDS[:0], "stop": true()}, "nobody"))
        assert answer.error is not None and answer.error.code() == TritonError.NOT_FOUND

    def test_a_client_that_hangs_up_is_cancelled(self, service: DecoderService) -> None:
        request = Request({"input_ids": np.full(5000, 97, np.int32), "stream": true()})
        service.execute([request])
        request.sender.cancelled = True
        assert request.sender.ended.wait(WAIT_S)
        assert request.sender.responses[-1].outputs["finish_reason"][0] == b"cancelled"

    def test_close_ends_what_is_open(self, scheduler: Scheduler) -> None:
        service = DecoderService(Backend, scheduler)
        request = Request({"input_ids": np.full(5000, 97, np.int32)})
        service.execute([request])
        service.close()
        assert scheduler.closed and request.sender.finals == 1
        assert "shutting down" in message(request.sender.responses[-1])

    def test_an_orphan_ends(self) -> None:
        """The first process starts a second one that watches it, and is killed."""
        second = (
            "from recap.serving.decoder import end_with; import os; parent = os.getppid(); "
            "print('watching', flush=True); end_with(parent)"
        )
        first = f"""
            import os, signal, subprocess, sys
            print(subprocess.Popen([sys.executable, "-c", {second!r}]).pid, flush=True)
            input()
            os.kill(os.getpid(), signal.SIGKILL)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        )
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "watching\n"
        watched = os.pidfd_open(pid)
        try:
            # Alive until the first one dies; its pipe to us stays open as long as it is.
            assert not select.select([watched], [], [], 1.5)[0]
            process.communicate("\n", timeout=WAIT_S)
            assert select.select([watched], [], [], WAIT_S)[0]
        finally:
            os.close(watched)

    def test_bad_settings_fail_the_load_with_one_line(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path
    ) -> None:
        monkeypatch.setenv("RECAP_MODEL__CHECKPOINT", str(tmp_path / "nowhere"))
        Logger.lines.clear()
        args = {"model_config": "{}", "model_repository": str(tmp_path / "r" / "recap_decoder")}
        with pytest.raises(TritonModelException, match=r"^model.checkpoint: "):
            DecoderService.load(Backend, args, lambda settings: Scheduler())
        (line,) = Logger.lines
        assert line.startswith("recap_decoder: model.checkpoint: ") and "\n" not in line


@pytest.mark.parametrize(
    ("groups", "allowed"),
    [
        ([{"count": 1}], True),
        ([{"count": 2}], False),
        ([{"count": 1}, {"count": 1}], False),
        ([{"count": 1, "gpus": [0, 1]}], False),
        ([{"count": 1, "gpus": [0]}], True),
    ],
)
def test_a_second_decoder_is_refused(groups: list[dict], allowed: bool) -> None:
    config = json.dumps({"instance_group": groups})
    if allowed:
        require_one_instance(config)
    else:
        with pytest.raises(SettingsError, match="count must be 1"):
            require_one_instance(config)
