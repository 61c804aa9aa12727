# Sourced by demo.sh and test.sh: makes .venv on first use, activates it.
#
# PYTHON        the interpreter to use (default: the first supported one on PATH)
# PROJECT_VENV  where the environment lives (default: .venv beside this folder)
#
# Names that begin with RECAP_ are settings of the server, which refuses those it does not know.
#
# pip takes torch from wherever it is configured to look. To get the small CPU build from PyTorch's
# own index: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu ./scripts/test.sh

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${PROJECT_VENV:-$root/.venv}"

# The Triton binary from PyPI brings Python-backend stubs for these versions.
supported="3.11 3.10 3.12"

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    local version name
    for version in $supported; do
        for name in "python$version" python3 python; do
            if "$name" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
                2>/dev/null; then
                echo "$name"
                return
            fi
        done
    done
    echo "no supported Python on PATH (one of: $supported); set PYTHON" >&2
    return 1
}

stamp="$(cat "$root/pyproject.toml" "$root/constraints/cpu.txt" | sha256sum | cut -d' ' -f1)"
if [ "$(cat "$venv/.recap-stamp" 2>/dev/null)" != "$stamp" ]; then
    python="$(find_python)" || exit 1
    echo "setting up $venv with $("$python" --version) (some minutes, once)"
    "$python" -m venv "$venv"
    pins=(--constraint "$root/constraints/cpu.txt")
    if [ "$("$python" -c 'import sys; print(*sys.version_info[:2])')" != "3 11" ]; then
        echo "the pinned set was tested on Python 3.11 only: installing without pins"
        pins=()
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        ${pins[@]+"${pins[@]}"} --editable "$root[cpu-server,client,bench,dev]"
    echo "$stamp" > "$venv/.recap-stamp"
fi
# shellcheck disable=SC1091
. "$venv/bin/activate"
cd "$root"
