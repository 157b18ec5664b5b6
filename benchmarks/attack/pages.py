"""Markup in every name that a user can give: the page keeps the elements that it has with harmless names."""

import contextlib
import json
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from unittest import mock

import numpy as np
import pandas as pd
from click.testing import CliRunner

from benchmarks.attack.cases import CLEAR, CRASHED, SILENT, UNCLEAR, Verdict
from benchmarks.attack.files import warnings_off
from bilevax.cli import _commands

HARMLESS = "plain"
MARKUP = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><b>bold</b>',
    "' onmouseover='alert(1)",
    '" onload="alert(1)',
    "javascript:alert(1)",
    "<!--",
    "-->",
    "]]>",
    "&lt;b&gt;",
    "&#60;i&#62;",
    "<style>*{display:none}</style>",
    "</title><h1>mine</h1>",
    "</table></div>",
    "<a href='javascript:alert(1)'>x</a>",
    "<svg onload=alert(1)>",
    "{{7*7}}",
    "${alert(1)}",
    "\\u003cscript\\u003e",
    "<\x00script>",
    "\u202e<b>",
    "$\\frac{1$",
    "<" * 50,
]


class Shape(HTMLParser):
    """The elements of a page with the names of their attributes, and where links lead; no text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.found = []

    def handle_starttag(self, tag, attributes):
        """Note the element."""
        self.found.append((tag, *sorted(name for name, _ in attributes)))
        for name, value in attributes:
            if name in ("href", "src", "action") and (value or "").strip().lower().startswith("javascript:"):
                self.found.append(("javascript", tag))

    def handle_comment(self, data):
        """Note the comment."""
        self.found.append(("comment",))


def shape_of(page):
    """What is on the page, but for text and for how often rows and cells are repeated."""
    reader = Shape()
    reader.feed(page)
    return sorted(reader.found)


def _store(folder, name_of):
    """Runs of two methods with names from `name_of(place)` wherever a run file has one."""
    held = folder / "runs"
    held.mkdir(parents=True)
    for k, algorithm in enumerate(["first", "second"]):
        rows = [
            {
                "step": t,
                "samples": 10 * t,
                "gradients": 10 * t,
                "products": 0,
                "seconds": 0.1 * t,
                "objective": 1 / (t + k + 1),
            }
            for t in range(4)
        ]
        settings = {
            "experiment": "compare",
            "problem": name_of("problem"),
            "algorithm": algorithm + name_of("algorithm"),
            "label": algorithm + name_of("label"),
            "seed": 0,
            "status": "done",
            "data": name_of("data"),
            "options": {"upper_step": name_of("an option"), name_of("the name of an option"): 1},
            "facts": {name_of("the name of a fact"): name_of("a fact")},
            "versions": {"jax": name_of("a version"), name_of("the name of a version"): "1"},
            "machine": {"system": name_of("the system"), "processor": name_of("the processor"), "cores": 2},
        }
        (held / f"{k}.json").write_text(json.dumps({"settings": settings, "rows": rows}))


def _table(name_of, rows=12):
    size = np.random.default_rng(0).normal(size=rows)
    kinds = ["a" + name_of("a label"), "b" + name_of("another label")]
    return pd.DataFrame(
        {
            "size" + name_of("a column"): size,
            "colour" + name_of("a column of text"): np.where(size > 0, "red" + name_of("a value"), "blue"),
            "kind" + name_of("the column of labels"): np.asarray(kinds)[np.arange(rows) % 2],
        }
    )


def _stand_in(self, X, y, X_trusted=None, y_trusted=None):
    """`TrustedReweighter.fit` without learning: the page is what matters."""
    rng = np.random.default_rng(0)
    self.classes_, self.n_features_in_ = np.unique(y), X.shape[1]
    self.weights_ = rng.random(X.shape[0])
    self.suspicion_rank_ = 1 + np.argsort(np.argsort(self.weights_))
    self.suggested_labels_ = self.classes_[rng.integers(len(self.classes_), size=X.shape[0])]
    self.suggestion_probabilities_ = rng.random(X.shape[0])
    self.evidence_, self.wrong_labels_ = "nothing was learned.", float(np.sum(1 - self.weights_))
    return self


def _report(folder, name_of):
    _store(folder, name_of)
    _command(["report", folder])
    for path in folder.glob("*.svg"):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        if "script" in tags:
            raise AssertionError(f"{path.name} has a script")
    return (folder / "report.html").read_text(encoding="utf-8")


def _clean(folder, name_of):
    from bilevax.models import TrustedReweighter

    folder.mkdir()
    frame = _table(name_of)
    for name in ("table", "trusted"):
        frame.to_csv(folder / f"{name}.csv", index=False)
    with mock.patch.object(TrustedReweighter, "fit", _stand_in), mock.patch("joblib.dump", _dump):
        label = frame.columns[-1]
        _command(
            [
                "clean",
                folder / "table.csv",
                "--label",
                label,
                "--trusted",
                folder / "trusted.csv",
                "--out",
                folder / "out",
            ]
        )
    return (folder / "out" / "report.html").read_text(encoding="utf-8")


def _dump(model, path, *more, **options):
    """The stand-in's scaler cannot be pickled, and need not be."""
    with open(path, "wb") as file:
        file.write(b"model")


def _command(command):
    outcome = CliRunner().invoke(_commands(), list(map(str, command)))
    if outcome.exit_code:
        raise outcome.exception if outcome.exception is not None else AssertionError(outcome.output)


class Attack:
    """All cases of this kind, by number."""

    kind = "html"
    ways = (_report, _clean)

    def __init__(self, folder):
        self.folder, self.harmless = folder, {}

    def carry_out(self, number, seed):
        """The verdict of a case."""
        rng = np.random.default_rng([seed, number, 2])
        make = _report if rng.random() < 0.3 else _clean
        markup, given = MARKUP[rng.integers(len(MARKUP))], []
        if rng.random() < 0.4:
            markup = "</script>" + markup  # a report holds its names in a script too

        def name_of(place):
            if place not in chosen:
                chosen[place] = rng.random() < 0.4
            if chosen[place]:
                given.append(place)
            return markup if chosen[place] else HARMLESS

        chosen = {}
        words = lambda: f"{make.__name__[1:]} with {markup!r} for {', '.join(dict.fromkeys(given))}"
        here = self.folder / (f"{number}" + ("<b>" if rng.random() < 0.2 else ""))
        with warnings_off():
            if make not in self.harmless:
                self.harmless[make] = shape_of(make(self.folder / make.__name__, lambda place: HARMLESS))
            try:
                page = make(here, name_of)
            except SystemExit as error:
                return Verdict(
                    CLEAR if str(error.code).startswith("Error: ") else UNCLEAR, words(), f"refused: {error.code}"[:300]
                )
            except AssertionError as error:
                return Verdict(SILENT, words(), str(error)[:300])
            except Exception as error:
                return Verdict(CRASHED, words(), f"{type(error).__name__}: {str(error)[:300]}")
            finally:
                with contextlib.suppress(OSError):
                    shutil.rmtree(here)
        if shape_of(page) == self.harmless[make]:
            return Verdict(CLEAR, words(), "escaped")
        new = [str(each) for each in set(shape_of(page)) - set(self.harmless[make])]
        return Verdict(
            SILENT, words(), f"the page has other elements: {', '.join(new[:5]) or 'more or fewer of the same'}"
        )
