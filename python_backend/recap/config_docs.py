"""Renders docs/configuration.md from the settings themselves, so that it cannot be wrong.

python -m recap.config_docs > docs/configuration.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Literal, TypeGuard, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from recap.config import CONFIG_VARIABLE, PREFIX, Settings

_HEAD = f"""# Configuration

<!-- Made by `python -m recap.config_docs > docs/configuration.md`; a test holds it current. -->

Every setting has a default. A YAML file named by `{CONFIG_VARIABLE}` changes them, and an
environment variable `{PREFIX}<SECTION>__<FIELD>` beats the file (nested sections add another
`__`):

```yaml
# recap.yaml
engine:
  dtype: bfloat16
drafter:
  nodes: 31
```

```sh
export {CONFIG_VARIABLE}=recap.yaml {PREFIX}ENGINE__SLOTS=8
tritonserver --model-repository=model_repository
```

`scripts/serve.py` takes the same file as `--config` and single values as `--set drafter.nodes=31`.
All settings are checked once when a model loads; an unknown name or a value out of range is one
error that names the setting. The committed `model_repository` is never edited.
"""


def render() -> str:
    """The whole document."""
    return "\n".join([_HEAD, *_sections(Settings, ())])


def _sections(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    plain = {n: f for n, f in section.model_fields.items() if not _is_section(f.annotation)}
    if plain:
        yield f"## `{'.'.join(path)}`\n\n{_first_line(section)}\n"
        yield "| setting | default | values | meaning |\n| --- | --- | --- | --- |"
        for name, field in plain.items():
            default = json.dumps(to_jsonable_python(field.get_default(call_default_factory=True)))
            text = " ".join((field.description or "").split())
            yield f"| `{name}` | `{default}` | {_values(field)} | {text} |"
        yield ""
    for name, field in section.model_fields.items():
        if _is_section(field.annotation):
            yield from _sections(field.annotation, (*path, name))


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().split("\n\n")[0]


def _values(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    bounds = [
        f"{word} {getattr(rule, name)}"
        for name, word in (("ge", "from"), ("le", "to"))
        for rule in field.metadata
        if hasattr(rule, name)
    ]
    inner = [arg for arg in get_args(annotation) if arg is not Ellipsis]
    if get_origin(annotation) is tuple and get_origin(inner[0]) is Literal:
        return "list of " + ", ".join(f"`{value}`" for value in get_args(inner[0]))
    names = [arg.__name__ for arg in inner if arg is not type(None)] or [annotation.__name__]
    return " ".join([names[0].lower(), *bounds])


if __name__ == "__main__":
    sys.stdout.write(render())
