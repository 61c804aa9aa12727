"""The suites `mini` and `warmup`, and the ranges of seeds that keep data apart."""

import io
from collections import Counter
from itertools import combinations

import pytest
from PIL import Image

from engine_build.tiny_vlm import FAMILIES, SUITE_MAX_TOKENS, load_suite, sample, seeds
from engine_build.tiny_vlm.suite import SUITE_FAMILIES, png_bytes


@pytest.fixture(scope="module")
def mini():
    return load_suite("mini")


def test_counts(mini):
    expected = dict.fromkeys((*FAMILIES, "two_image", "second_turn"), 40)
    assert Counter(each.family for each in mini) == {**expected, "text_only": 20}
    assert len(load_suite("warmup")) == 8
    assert SUITE_MAX_TOKENS == 96


def test_ids_are_unique_and_name_the_family(mini):
    both = [*mini, *load_suite("warmup")]
    assert len({each.id for each in both}) == len(both)
    assert all(each.id.split("/")[1] == each.family for each in both)


def test_prompts_are_different(mini):
    prompts = {(repr(each.messages), *each.images) for each in mini if each.images}
    assert len(prompts) == sum(bool(each.images) for each in mini)


def test_every_image_part_has_its_image(mini):
    for each in [*mini, *load_suite("warmup")]:
        parts = [part for message in each.messages for part in message["content"]]
        assert sum(part["type"] == "image" for part in parts) == len(each.images), each.id
        assert {part["type"] for part in parts} <= {"image", "text"}
        for png in each.images:
            with Image.open(io.BytesIO(png)) as image:
                assert image.format == "PNG" and image.mode == "RGB"


def test_attributes_come_from_the_answer(mini):
    for each in mini:
        if each.family == "text_only":
            assert each.answer is None and each.attributes == []
        else:
            assert each.attributes and all(word in each.answer for word in each.attributes)


def test_shapes_of_prompts(mini):
    for each in mini:
        roles = [message["role"] for message in each.messages]
        if each.family == "second_turn":
            assert roles == ["user", "assistant", "user"]
            assert [part["type"] for part in each.messages[-1]["content"]] == ["text"]
        else:
            assert roles == ["user"]
        images = {"two_image": 2, "text_only": 0}.get(each.family, 1)
        assert len(each.images) == images


def test_the_question_is_about_either_of_two_images(mini):
    places = Counter()
    for each in mini:
        if each.family == "two_image":
            index = int(each.id.split("/")[2])
            seed = seeds.block_seed(seeds.MINI_SEEDS, SUITE_FAMILIES.index("two_image"), index)
            asked = sample(seed, ("chart", "doc", "table", "sci")[index % 4])
            assert asked.answer == each.answer and len(set(each.images)) == 2
            places[each.images.index(png_bytes(asked.image))] += 1
    assert places.keys() == {0, 1} and min(places.values()) >= 10


def test_families_are_interleaved(mini):
    families = [each.family for each in mini]
    longest = run = 1
    for before, after in zip(families, families[1:], strict=False):
        run = run + 1 if before == after else 1
        longest = max(longest, run)
    assert longest <= 5
    assert set(families[:60]) == set(SUITE_FAMILIES)


def test_subsets_keep_the_order(mini):
    subset = load_suite("mini", per_family=3)
    assert Counter(each.family for each in subset) == dict.fromkeys(SUITE_FAMILIES, 3)
    wanted = {each.id for each in subset}
    assert subset == [each for each in mini if each.id in wanted]
    assert all(int(each.id.split("/")[2]) < 3 for each in subset)


@pytest.mark.parametrize(("name", "per_family"), [("maxi", None), ("mini", 0), ("warmup", 2)])
def test_wrong_names_and_sizes_are_errors(name, per_family):
    with pytest.raises(ValueError):
        load_suite(name, per_family)


def test_ranges_of_seeds_are_disjoint():
    ranges = {name: value for name, value in vars(seeds).items() if isinstance(value, range)}
    assert len(ranges) == 7
    for (one, a), (other, b) in combinations(ranges.items(), 2):
        assert a.step == b.step == 1
        assert a.stop <= b.start or b.stop <= a.start, (one, other)


def test_blocks_lie_in_their_range_and_apart():
    used = {
        seeds.block_seed(seeds.MINI_SEEDS, block, index)
        for block in range(len(SUITE_FAMILIES))
        for index in (0, seeds.BLOCK - 1)
    }
    assert len(used) == 2 * len(SUITE_FAMILIES)
    assert all(seed in seeds.MINI_SEEDS for seed in used)


@pytest.mark.parametrize(("block", "index"), [(0, -1), (0, seeds.BLOCK), (10, 0), (-1, 0)])
def test_seeds_outside_a_range_are_errors(block, index):
    with pytest.raises(ValueError):
        seeds.block_seed(seeds.MINI_SEEDS, block, index)


def test_no_picture_of_the_suite_is_in_another_set(mini):
    """Pictures are so many that disjoint seeds also mean different pictures."""
    warmup = {png for each in load_suite("warmup") for png in each.images}
    assert not warmup & {png for each in mini for png in each.images}
