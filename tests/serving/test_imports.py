"""Arrows between the rooms of the house point one way (docs: the design's "arrows").

Reads the imports of every module, those inside functions and type-checking blocks included.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python_backend" / "recap"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# What any module may use: plain data, settings, errors.
SHARED = {"config", "errors", "sequence", "predictions", "requests"}
# Room -> what else of ours it may import. A package is one room; a dotted name is one module of
# it. Rooms that are not listed may import anything except `serving`.
ALLOWED = {
    "errors": set(),
    "predictions": set(),
    "sequence": set(),
    "requests": set(),
    "config": {"errors"},
    "memory": set(),
    "suffix": set(),
    "tree": set(),
    "calibration": set(),
    "budget": set(),
    "text": set(),
    "images": set(),
    "fusion": {"memory"},
    "drafters": {"memory", "fusion", "suffix", "tree", "calibration"},
    "sampling": set(),
    "acceptance": {"sampling", "tree"},
    "engines": {"tree", "models"},
    "models": {"engines.base", "images"},
    "job": {"engines.base", "text", "tree"},
    "prefill": {"engines.base", "job"},
    "scheduler": {
        "drafters",
        "budget",
        "acceptance",
        "text",
        "engines.base",
        "tree",
        "job",
        "prefill",
    },
}
HEAVY = {"torch", "transformers", "tokenizers", "tensorrt_llm"}
HEAVY_ROOMS = {"engines", "models", "sampling"}
TRITON = {"triton_python_backend_utils", "tritonclient", "tritonserver", "pytriton"}
# Besides the standard library; numba compiles the hot loops.
LIGHT = {"numpy", "numba"}
LIGHT_ROOMS = {
    "memory",
    "fusion",
    "suffix",
    "tree",
    "calibration",
    "budget",
    "scheduler",
    "job",
    "prefill",
    "acceptance",
    "drafters",
    "text",
    "requests",
    "sequence",
    "predictions",
}


def imports(path: Path) -> Iterator[str]:
    """Full names of what a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # `from recap import x` and `from recap.engines import x` may name modules.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(name: str) -> str | None:
    """The module of ours that an imported name belongs to, without `recap.`."""
    if not name.startswith("recap."):
        return None
    parts = name.split(".")[1:]
    while parts:
        for candidate in (".".join(parts), ".".join([*parts, "__init__"])):
            if candidate in MODULES:
                return ".".join(parts)
        parts.pop()
    return None


def outside(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_arrows(module: str) -> None:
    room = module.split(".")[0]
    for name in imports(MODULES[module]):
        target = own(name)
        if target is None or target.split(".")[0] == room:
            continue
        there = target.split(".")[0]
        assert there != "serving" or room == "serving", f"{module} imports {name}"
        if room in ALLOWED:
            allowed = ALLOWED[room] | (SHARED if room not in SHARED else {"errors"})
            assert {there, target} & allowed, f"{module} must not import {name}"


@pytest.mark.parametrize("module", MODULES)
def test_heavy_libraries_stay_in_their_rooms(module: str) -> None:
    room = module.split(".")[0]
    used = {outside(name) for name in imports(MODULES[module])}
    if room not in HEAVY_ROOMS or module == "engines.base":
        assert not used & HEAVY, f"{module} imports {used & HEAVY}"
    if room != "serving":
        assert not used & TRITON, f"{module} imports {used & TRITON}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.split(".")[0] in LIGHT_ROOMS])
def test_light_modules_need_numpy_only(module: str) -> None:
    used = {outside(name) for name in imports(MODULES[module])}
    strange = used - LIGHT - {"recap", "__future__"} - set(sys.stdlib_module_names)
    assert not strange, f"{module} imports {strange}"


def test_services_know_triton_only_by_what_they_are_given() -> None:
    for module, path in MODULES.items():
        used = {outside(name) for name in imports(path)}
        assert "triton_python_backend_utils" not in used, module
