"""Digests of samples; run as a script it prints those of this process as JSON."""

import hashlib
import json
import sys

from engine_build.tiny_vlm import FAMILIES, Sample, load_suite, sample

GOLDEN_SEEDS = (7, 38, 900_001)


def text_digest(made: Sample) -> str:
    spans = [list(span) for span in made.spans]
    text = json.dumps([made.kind, made.question, made.answer, spans])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def image_digest(made: Sample) -> str:
    header = repr((made.image.mode, made.image.size)).encode()
    return hashlib.sha256(header + made.image.tobytes()).hexdigest()[:16]


def annotation_digest(made: Sample) -> str:
    points = [[round(a.x, 6), round(a.y, 6), a.label] for a in made.annotations]
    return hashlib.sha256(json.dumps(points).encode()).hexdigest()[:16]


def golden_digests() -> dict[str, dict[str, str]]:
    """Text and image digest by `family/seed`."""
    made = [sample(seed, family) for family in FAMILIES for seed in GOLDEN_SEEDS]
    return {
        f"{each.family}/{each.seed}": {"text": text_digest(each), "image": image_digest(each)}
        for each in made
    }


def all_digests() -> dict[str, object]:
    """Everything that must not depend on the process."""
    suite = [*load_suite("mini", per_family=2), *load_suite("warmup")]
    return {
        "golden": golden_digests(),
        "annotations": [annotation_digest(sample(seed)) for seed in range(20)],
        "suite": [
            [each.id, each.messages, each.answer, hashlib.sha256(b"".join(each.images)).hexdigest()]
            for each in suite
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(all_digests(), sort_keys=True))
