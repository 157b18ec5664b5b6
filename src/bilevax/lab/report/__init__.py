"""Stored runs become one HTML page, and pictures of every figure."""

import os
from pathlib import Path

from bilevax.files import path_of, together
from bilevax.lab.report.curves import styles
from bilevax.lab.report.page import make_page
from bilevax.lab.report.pictures import draw_pictures
from bilevax.lab.results import labels, load

__all__ = ["write_report"]

PAGE = "report.html"


def write_report(folder: str | os.PathLike) -> list[Path]:
    """Read `folder`/runs/*.json and write report.html and a PNG and an SVG of each experiment into `folder`.

    All files are replaced together (`bilevax.files.together`), and none if a run cannot be read. Needs the extra
    `bilevax[plots]`.
    """
    folder = path_of("folder", folder)
    experiments = load(folder)
    names = [f"{experiment.name}.{ending}" for experiment in experiments for ending in ("png", "svg")]
    with together(folder, [PAGE, *names]) as new:
        looks = styles(labels(experiments))
        (new / PAGE).write_bytes(make_page(experiments, looks).encode())
        for experiment in experiments:
            for ending, picture in draw_pictures(experiment, looks).items():
                (new / f"{experiment.name}.{ending}").write_bytes(picture)
    return [folder / name for name in (PAGE, *names)]
