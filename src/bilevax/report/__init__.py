"""Stored runs become one HTML page, and pictures of every figure."""

import os
from pathlib import Path

from bilevax.report.figures import pictures
from bilevax.report.page import page
from bilevax.report.palette import styles
from bilevax.report.runs import labels, load

__all__ = ["write_report"]


def write_report(folder: str | os.PathLike) -> list[Path]:
    """Read `folder`/runs/*.json and write report.html and a PNG and an SVG of each experiment into `folder`.

    Each file appears whole or not at all, and none if a run cannot be read. Needs the extra `bilevax[plots]`.
    """
    experiments = load(folder)
    looks = styles(labels(experiments))
    content = {"report.html": page(experiments, looks).encode()}
    for experiment in experiments:
        for ending, picture in pictures(experiment, looks).items():
            content[f"{experiment.name}.{ending}"] = picture
    return [_write(Path(folder) / name, held) for name, held in content.items()]


def _write(path: Path, content: bytes) -> Path:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
    return path
