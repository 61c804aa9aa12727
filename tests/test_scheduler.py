"""The scheduler over a toy engine: same text whatever is drafted and whatever runs beside it."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.budget import FixedBudget
from recap.config import LimitSettings
from recap.errors import CapacityError, EngineError, InvalidRequestError, NotFoundError
from recap.requests import GenerationRequest
from recap.scheduler import Scheduler
from tests.fakes import (
    IMAGE,
    VOCAB,
    GuessingDrafter,
    RecordingSink,
    ToyEngine,
    plain_decode,
    toy_vocabulary,
)


def make(engine=None, nodes=12, limits=None, chunk=16, seed=True, drafter=None) -> Scheduler:
    return Scheduler(
        engine or ToyEngine(),
        drafter or GuessingDrafter(),
        FixedBudget(nodes),
        toy_vocabulary(),
        limits or LimitSettings(),
        prefill_chunk_tokens=chunk,
        seed_from_prompt=seed,
    )


def ask(prompt, max_tokens=None, **fields) -> GenerationRequest:
    return GenerationRequest(np.array(prompt, np.int32), max_tokens, **fields)


def run(scheduler: Scheduler) -> None:
    while scheduler.step():
        pass


def assert_clean(scheduler: Scheduler) -> None:
    assert scheduler.running == scheduler.waiting == 0
    assert not scheduler.engine.cache, "a slot leaked"
    assert not scheduler.drafter.open, "a request's memories leaked"


prompts = st.lists(st.integers(1, VOCAB - 2), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(
    jobs=st.lists(
        st.tuples(
            prompts,
            st.integers(1, 30),
            st.integers(0, 12),  # the step it arrives at
            st.one_of(st.none(), st.integers(0, 12)),  # steps until it is cancelled
            st.integers(0, 3),  # image rows
        ),
        min_size=1,
        max_size=8,
    ),
    mixed=st.booleans(),
    chunked=st.booleans(),
    nodes=st.sampled_from([0, 3, 12]),
    seed=st.integers(0, 100),
)
def test_ids_are_those_of_plain_decoding(jobs, mixed, chunked, nodes, seed) -> None:
    engine = ToyEngine(slots=3, mixed_passes=mixed, chunked_prefill=chunked)
    drafter = GuessingDrafter(seed)
    scheduler = make(engine, nodes=nodes, drafter=drafter)
    sinks: dict[int, tuple] = {}
    step = 0
    while len(sinks) < len(jobs) or scheduler.running or scheduler.waiting:
        for number, (prompt, max_tokens, arrival, cancel, images) in enumerate(jobs):
            if number not in sinks and arrival <= step:
                ids = [IMAGE] * images + prompt
                features = np.full((images, 2), 0.25 * (number + 1), np.float32)
                sink = RecordingSink()
                key = scheduler.submit(
                    ask(
                        ids,
                        max_tokens,
                        features=features if images else None,
                        image_layout=np.array([[images]]) if images else None,
                    ),
                    sink,
                )
                drafter.salts[key] = float(features.sum())
                sinks[number] = (sink, ids, float(features.sum()), key)
            if number in sinks and cancel is not None and arrival + cancel == step:
                scheduler.cancel(sinks[number][3])
        scheduler.step()
        step += 1
    for number, (sink, ids, salt, _) in sinks.items():
        expected = plain_decode(ids, jobs[number][1], salt)
        assert sink.ends == 1 and sink.error is None
        if sink.last.finish_reason == "cancelled":
            assert sink.ids == expected[: len(sink.ids)]
        else:
            assert sink.ids == expected
            assert sink.last.finish_reason == ("stop" if expected[-1] == 0 else "length")
        assert sink.text == toy_vocabulary().decode(sink.ids)
        stats = sink.last.stats
        assert stats.num_input_tokens == len(ids)
        assert stats.num_output_tokens == len(sink.ids)
        if sink.ids:
            steps, accepted = stats.num_decode_steps, stats.total_accepted_draft_tokens
            assert stats.num_output_tokens == 1 + steps + accepted
    assert_clean(scheduler)


def test_drafts_save_passes() -> None:
    plain, drafted = RecordingSink(), RecordingSink()
    for nodes, sink in ((0, plain), (12, drafted)):
        scheduler = make(nodes=nodes, drafter=GuessingDrafter(right=1.0))
        scheduler.submit(ask([5, 6, 7], 40), sink)
        run(scheduler)
    assert drafted.ids == plain.ids
    assert plain.last.stats.num_decode_steps == len(plain.ids) - 1
    assert drafted.last.stats.num_decode_steps < plain.last.stats.num_decode_steps


def test_a_prompt_is_prefilled_in_chunks_beside_running_requests() -> None:
    engine = ToyEngine()
    scheduler = make(engine, chunk=16)
    first, second = RecordingSink(), RecordingSink()
    scheduler.submit(ask([3] * 4, 30), first)
    scheduler.step()
    scheduler.submit(ask(list(range(1, 51)), 5), second)
    run(scheduler)
    sizes = [[len(chunk.ids) for chunk in work.prefills] for work in engine.passes]
    assert [size for size in sizes if size] == [[4], [16], [16], [16], [2]]
    assert all(len(work.trees) == 1 for work in engine.passes[1:5]), "the first went on meanwhile"
    assert first.ids == plain_decode([3] * 4, 30)
    assert second.ids == plain_decode(list(range(1, 51)), 5)


def test_seed_covers_every_text_position_of_the_prompt() -> None:
    prompt = [IMAGE, IMAGE, *range(1, 40)]
    drafter = GuessingDrafter()
    scheduler = make(chunk=16, drafter=drafter)
    request = ask(prompt, 5, features=np.zeros((2, 2), np.float32), image_layout=np.array([[2]]))
    key = scheduler.submit(request, RecordingSink())
    run(scheduler)
    seed = drafter.seeds[key]
    assert seed.positions.tolist() == list(range(2, 41))
    for position, row in zip(seed.positions, seed.predictions.ids, strict=True):
        assert row[0] == plain_decode(prompt[: position + 1], 1)[0]


@pytest.mark.parametrize("seed, able", [(False, True), (True, False)])
def test_no_seed_when_unwanted_or_impossible(seed, able) -> None:
    engine = ToyEngine(prompt_predictions=able)
    drafter = GuessingDrafter()
    scheduler = make(engine, seed=seed, drafter=drafter)
    key = scheduler.submit(ask([1, 2, 3], 5), RecordingSink())
    run(scheduler)
    assert drafter.seeds[key] is None
    assert all(not chunk.wanted.size for work in engine.passes for chunk in work.prefills)


@pytest.mark.parametrize(
    "request_, field",
    [
        (ask([]), "prompt"),
        (ask([1] * 256), "prompt"),
        (ask([1], 0), "max_tokens"),
        (ask([1], -5), "max_tokens"),
        (ask([1], 2**31 - 1), "max_tokens"),
        (ask([1] * 250, 7), "max_tokens"),
        (ask([-1]), "input_ids"),
        (ask([VOCAB]), "input_ids"),
        (ask([IMAGE]), "image"),
        (ask([IMAGE], image_layout=np.array([[1]])), "image_features"),
        (ask([1], features=np.zeros((1, 2), np.float32)), "image_features"),
    ],
)
def test_bad_requests_name_the_field_and_leave_nothing(request_, field) -> None:
    scheduler = make()
    with pytest.raises(InvalidRequestError) as caught:
        scheduler.submit(request_, RecordingSink())
    assert caught.value.field == field
    assert_clean(scheduler)


def test_default_max_tokens_is_bounded_by_the_context() -> None:
    scheduler = make(ToyEngine(context=20), limits=LimitSettings(default_max_tokens=256))
    sink = RecordingSink()
    scheduler.submit(ask([7] * 15), sink)
    run(scheduler)
    assert sink.ids == plain_decode([7] * 15, 5)


def test_the_waiting_queue_is_bounded() -> None:
    scheduler = make(ToyEngine(slots=2), limits=LimitSettings(max_waiting=1))
    sinks = [RecordingSink() for _ in range(3)]
    for sink in sinks:
        scheduler.submit(ask([1, 2], 4), sink)
    with pytest.raises(CapacityError, match="max_waiting"):
        scheduler.submit(ask([1, 2], 4), RecordingSink())
    run(scheduler)
    assert all(sink.ids == plain_decode([1, 2], 4) for sink in sinks)
    assert_clean(scheduler)


def test_stop_by_id_ends_running_and_waiting_requests() -> None:
    scheduler = make(ToyEngine(slots=1), nodes=0)
    running, waiting, other = RecordingSink(), RecordingSink(), RecordingSink()
    scheduler.submit(ask([1, 2], 50, request_id="a"), running)
    scheduler.submit(ask([1, 2], 50, request_id="a"), waiting)
    scheduler.submit(ask([1, 3], 5, request_id="b"), other)
    scheduler.step()
    scheduler.step()
    scheduler.stop("a")
    run(scheduler)
    assert running.last.finish_reason == waiting.last.finish_reason == "cancelled"
    assert running.ids == plain_decode([1, 2], 50)[: len(running.ids)] and running.ids
    assert waiting.ids == []
    assert other.ids == plain_decode([1, 3], 5)
    for unknown in ("a", "zzz", ""):
        with pytest.raises(NotFoundError):
            scheduler.stop(unknown)
    assert_clean(scheduler)


def test_a_failed_step_fails_its_requests_and_the_next_one_works() -> None:
    engine = ToyEngine()
    scheduler = make(engine)
    sinks = [RecordingSink(), RecordingSink()]
    for sink in sinks:
        scheduler.submit(ask([1, 2, 3], 20), sink)
    scheduler.step()
    engine.fail_next = RuntimeError("/secret/path broke")
    run(scheduler)
    for sink in sinks:
        assert isinstance(sink.error, EngineError) and "/secret" not in str(sink.error)
    assert_clean(scheduler)
    after = RecordingSink()
    scheduler.submit(ask([1, 2, 3], 20), after)
    run(scheduler)
    assert after.ids == plain_decode([1, 2, 3], 20)


def test_features_of_a_wrong_width_are_refused_at_the_door() -> None:
    """Inside a pass they would end every request of it."""
    engine = ToyEngine()
    engine.capabilities = replace(engine.capabilities, feature_width=2)
    scheduler = make(engine)
    for shape in ((1, 3), (1, 1), (1,), (1, 2, 1)):
        request = ask([IMAGE], 5, features=np.zeros(shape), image_layout=np.array([[1]]))
        with pytest.raises(InvalidRequestError) as caught:
            scheduler.submit(request, RecordingSink())
        assert caught.value.field == "image_features"
    assert_clean(scheduler)


def test_an_error_inside_a_pass_is_no_client_error() -> None:
    engine = ToyEngine()
    scheduler, sink = make(engine), RecordingSink()
    scheduler.submit(ask([1, 2], 20), sink)
    engine.fail_next = InvalidRequestError("image", "another request's fault")
    run(scheduler)
    assert isinstance(sink.error, EngineError)


class BrokenEngine(ToyEngine):
    """One whose named calls fail, as all calls of a device do once it has broken."""

    def __init__(self, *broken: str) -> None:
        super().__init__(slots=2)
        self.broken = broken

    def submit(self, work):
        assert "submit" not in self.broken
        return super().submit(work)

    def allocate(self, n_tokens: int) -> int:
        assert "allocate" not in self.broken
        return super().allocate(n_tokens)

    def release(self, slot: int) -> None:
        assert "release" not in self.broken
        super().release(slot)

    def commit(self, slot: int, rows) -> None:
        assert "commit" not in self.broken
        super().commit(slot, rows)


@pytest.mark.parametrize(
    "broken",
    [("allocate",), ("submit",), ("commit",), ("release",), ("submit", "release")],
)
def test_every_request_ends_once_whatever_the_engine_does(broken) -> None:
    """Also those that come later, and those that wait for slots which never come free."""
    scheduler = make(BrokenEngine(*broken), limits=LimitSettings(max_waiting=64))
    scheduler.start()
    sinks = []
    for _ in range(2):
        for _ in range(5):
            sinks.append(RecordingSink())
            scheduler.submit(ask([1, 2, 3], 20), sinks[-1])
        assert all(sink.ended.wait(30) for sink in sinks)
    scheduler.close()
    assert all(sink.ends == 1 for sink in sinks)
    assert scheduler.running == scheduler.waiting == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 20])
def test_close_that_loses_patience_leaves_the_step_its_slots_and_tells_one_end(max_tokens) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class SlowEngine(ToyEngine):
        def submit(self, work):
            handle = super().submit(work)
            if len(self.passes) == min(max_tokens, 2):
                entered.set()
                assert go_on.wait(30)
            return handle

    engine, told = SlowEngine(), []
    scheduler = make(engine, nodes=0)
    sink = RecordingSink(lambda chunk: told.append(chunk.finish_reason))
    scheduler.start()
    scheduler.submit(ask([1, 2], max_tokens), sink)
    assert entered.wait(30)
    scheduler.close(timeout_s=0.0)
    assert isinstance(sink.error, CapacityError)
    assert engine.cache, "the slot was taken from a step that uses it"
    heard = list(told)
    go_on.set()
    thread = scheduler._thread
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive() and told == heard and sink.ends == 1


def test_a_request_that_never_ran_has_no_mat() -> None:
    scheduler, sink = make(), RecordingSink()
    scheduler.cancel(scheduler.submit(ask([1, 2], 20), sink))
    run(scheduler)
    assert sink.last.finish_reason == "cancelled"
    assert sink.last.stats.mean_accepted_tokens == 0


def test_a_broken_receiver_ends_its_request_only() -> None:
    def broken(_chunk) -> None:
        raise OSError("client is gone")

    scheduler = make()
    lost, fine = RecordingSink(on_chunk=broken), RecordingSink()
    scheduler.submit(ask([1, 2, 3], 40), lost)
    scheduler.submit(ask([1, 2, 3], 20), fine)
    run(scheduler)
    assert len(lost.chunks) == 2 and lost.last.finish_reason == "cancelled"
    assert fine.ids == plain_decode([1, 2, 3], 20)
    assert_clean(scheduler)


def test_thread_serves_many_submitters_and_closes() -> None:
    scheduler = make(ToyEngine(slots=3), limits=LimitSettings(max_waiting=64))
    scheduler.start()
    finished = threading.Semaphore(0)
    sinks = {}

    def client(number: int) -> None:
        sink = RecordingSink(lambda chunk: chunk.finish_reason and finished.release())
        sinks[number] = sink
        scheduler.submit(ask([number + 1, 2], 10), sink)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert finished.acquire(timeout=30)
    for number, sink in sinks.items():
        assert sink.ids == plain_decode([number + 1, 2], 10)
    scheduler.close()
    with pytest.raises(CapacityError):
        scheduler.submit(ask([1], 1), RecordingSink())
    assert_clean(scheduler)


def test_close_fails_open_requests() -> None:
    scheduler = make(ToyEngine(slots=1))
    sinks = [RecordingSink(), RecordingSink()]
    for sink in sinks:
        scheduler.submit(ask([1, 2], 50), sink)
    scheduler.step()
    scheduler.close()
    assert all(isinstance(sink.error, CapacityError) and sink.ends == 1 for sink in sinks)
    assert_clean(scheduler)
