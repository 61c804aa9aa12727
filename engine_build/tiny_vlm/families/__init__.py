"""The seven families, each like a kind of public single-turn benchmark."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from engine_build.tiny_vlm.families import chart, gqa, scene, sci, table
from engine_build.tiny_vlm.families import doc as document
from engine_build.tiny_vlm.families import ocr as sign
from engine_build.tiny_vlm.families.base import Exchange, Family

FAMILIES: Mapping[str, Family[Any]] = MappingProxyType(
    {
        family.name: family
        for family in (
            scene.FAMILY,
            gqa.FAMILY,
            chart.FAMILY,
            sign.FAMILY,
            document.FAMILY,
            table.FAMILY,
            sci.FAMILY,
        )
    }
)
"""Name to family: scene description, spatial and counting questions, charts, rendered text,
receipts, tables, diagrams with multiple choice. The order is fixed."""

__all__ = ["FAMILIES", "Exchange", "Family"]
