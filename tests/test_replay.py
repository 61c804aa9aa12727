"""Replays of the recorded traces: the acceptance figures, and the rules of counting."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recap.replay import (
    Trace,
    drafter_settings,
    load_traces,
    replay_settings,
    walk,
)
from recap.tree import CandidateTree

ROOT = Path(__file__).parent.parent
TRACES = ROOT / "tests/data/traces_specbench_smollm2.npz"


@pytest.fixture(scope="module")
def traces():
    return load_traces(TRACES)


def mat(traces, method, nodes, **changes):
    return replay_settings(drafter_settings(method, nodes, changes), traces, nodes).total.mat


@pytest.mark.parametrize(("nodes", "least"), [(63, 2.33), (23, 2.16), (7, 1.95)])
def test_recap_reaches_its_figures_in_one_configuration(traces, nodes, least):
    assert mat(traces, "recap", nodes) >= least


@pytest.mark.parametrize(
    ("method", "nodes", "expected"),
    [
        ("token_recycling", 63, 1.62),
        ("token_recycling", 23, 1.54),
        ("token_recycling", 7, 1.41),
        ("prompt_lookup", 63, 1.81),
        ("prompt_lookup", 7, 1.77),
        ("autoregressive", 63, 1.00),
    ],
)
def test_baselines_are_as_strong_as_known(traces, method, nodes, expected):
    """A baseline that is weaker here than elsewhere would flatter RECAP."""
    assert mat(traces, method, nodes) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("name", ["suffix", "persistent", "seed_from_prompt"])
def test_every_ingredient_pays(traces, name):
    assert mat(traces, "recap", 15, **{f"recap.{name}": False}) < mat(traces, "recap", 15)


def test_longer_keys_pay(traces):
    """Without the suffix index, which on long copied text finds what longer keys find."""
    one = {"recap.suffix": False, "recap.key_lengths": (1,)}
    assert mat(traces, "recap", 15, **one) < mat(traces, "recap", 15, **{"recap.suffix": False})


def test_all_tokens_but_the_first_of_each_trace_are_counted(traces):
    result = replay_settings(drafter_settings("prompt_lookup", 7, {}), traces, 7)
    emitted = sum(len(trace.tokens) - trace.prompt_length for trace in traces)
    assert result.total.tokens == emitted - len(traces) == 3783
    assert sum(tally.tokens for tally in result.by_category.values()) == 3783
    assert len(result.by_category) == 6
    plain = replay_settings(drafter_settings("autoregressive", 0, {}), traces, 0)
    assert plain.total.steps == 3783 and plain.total.mat == 1


def test_drafts_beyond_the_end_of_a_trace_are_not_counted():
    """A text that repeats itself, cut in the middle: the draft reaches beyond the cut."""
    tokens = np.tile(np.arange(1, 6, dtype=np.int32), 5)
    trace = Trace(
        tokens=tokens,
        prompt_length=10,
        category="toy",
        ids=np.tile(tokens[1:, None], (1, 8)),
        probs=np.full((24, 8), 0.1, np.float32),
    )
    total = replay_settings(drafter_settings("prompt_lookup", 8, {}), [trace], 8).total
    assert (total.tokens, total.steps) == (14, 2)  # 8 drafts and a bonus, then what is left


def test_walk_follows_the_trace_down_the_tree():
    tree = CandidateTree(
        tokens=np.array([9, 1, 2, 2, 3], np.int32),
        parents=np.array([-1, 0, 0, 1, 3], np.int32),
        depth=np.array([0, 1, 1, 2, 3], np.int32),
        score=np.ones(5, np.float32),
        source=np.zeros(5, np.uint8),
        bin=np.zeros(5, np.uint16),
    )
    assert walk(tree, np.array([1, 2, 3, 4], np.int32)).tolist() == [0, 1, 3, 4]
    assert walk(tree, np.array([2, 2], np.int32)).tolist() == [0, 2]
    assert walk(tree, np.array([7], np.int32)).tolist() == [0]
    assert walk(tree, np.empty(0, np.int32)).tolist() == [0]


def test_eighty_nodes_of_token_recycling_are_the_published_template():
    assert drafter_settings("token_recycling", 80, {}).token_recycling.tree == "published"
    assert drafter_settings("token_recycling", 63, {}).token_recycling.tree == "rank_cost"
    forced = drafter_settings("token_recycling", 63, {"token_recycling.tree": "published"})
    assert forced.token_recycling.tree == "published"
    with pytest.raises(ValueError, match="nonsense"):
        drafter_settings("recap", 7, {"recap.nonsense": 1})


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/replay.py", *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "python_backend"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_prints_one_json_object(traces):
    done = run_script("--method", "prompt_lookup", "--nodes", "7", "--json")
    report = json.loads(done.stdout)
    assert report["mat"] == pytest.approx(mat(traces, "prompt_lookup", 7), abs=1e-3)
    assert (report["method"], report["nodes"], report["tokens"]) == ("prompt_lookup", 7, 3783)
    assert set(report["by_category"]) == {trace.category for trace in traces}


def test_the_script_explains_a_wrong_setting():
    done = run_script("--method", "recap", "--set", "recap.fusion=nonsense")
    assert done.returncode == 2 and "recap.fusion" in done.stderr
    assert run_script("--set", "recap.fusion").returncode == 2
