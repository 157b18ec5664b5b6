"""The skeletons and the code on the pages for developers run, and CONTRIBUTING.md names every room."""

import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.algorithms.contract import DESCRIPTIONS
from bilevax.testing import check_algorithm

ROOT = Path(__file__).parent.parent
DEVELOPER = ROOT / "docs" / "developer"
SKELETONS = sorted(path.stem for path in (DEVELOPER / "skeletons").glob("*.py"))
PAGES = sorted(path.name for path in DEVELOPER.glob("add-*.md"))


@pytest.fixture(autouse=True)
def skeletons_at_hand(monkeypatch):
    """The skeletons can be imported by their names, and are forgotten after a test."""
    before = dict(DESCRIPTIONS)
    monkeypatch.syspath_prepend(DEVELOPER / "skeletons")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    DESCRIPTIONS.clear()
    DESCRIPTIONS.update(before)
    for name in SKELETONS:
        sys.modules.pop(name, None)


def test_there_is_a_page_for_each_skeleton():
    assert [re.fullmatch(r"add-an?-(.*)\.md", page)[1] for page in PAGES] == ["curvature", "problem", "algorithm"]
    assert SKELETONS == ["algorithm", "curvature", "problem"]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page):
    code = "\n".join(re.findall(r"```python\n(.*?)```", (DEVELOPER / page).read_text(), flags=re.DOTALL))
    assert code
    exec(compile(code, page, "exec"), {"__name__": page})


def test_the_algorithm_keeps_the_contract():
    check_algorithm(importlib.import_module("algorithm").alternating, initialization="cheap", batch_size=4)


def test_the_algorithm_finds_the_solution():
    truth = bx.problems.quadratic(num_tasks=3, noise=0.05, num_samples=12)
    alternating = importlib.import_module("algorithm").alternating
    algorithm = alternating(upper_step=0.03, initialization="cheap", batch_size=4)
    x = bx.solve(truth.problem, algorithm, steps=4000, metrics=None).x
    assert jnp.linalg.norm(x - truth.solution) < 0.05 * jnp.linalg.norm(truth.problem.x0 - truth.solution)


@pytest.mark.parametrize("m", [1, 3])
def test_rsvrb_with_the_curvature_gets_close_to_the_solution(m):
    diagonal, truth = importlib.import_module("curvature").diagonal, bx.problems.quadratic(num_tasks=m, noise=0.05)
    algorithm = bx.rsvrb(curvature=diagonal, upper_step=0.03, lower_step=0.1, mixing=0.05, initialization="cheap")
    x = bx.solve(truth.problem, algorithm, steps=4000, metrics=None).x
    assert jnp.linalg.norm(x - truth.solution) < 0.2 * jnp.linalg.norm(truth.problem.x0 - truth.solution)


@pytest.fixture
def shrunken_means():
    means = np.random.default_rng(1).normal(size=(40, 1, 3)) * [0.5, 0.7, 0.9]
    samples = means + np.random.default_rng(2).normal(size=(40, 8, 3))
    return importlib.import_module("problem").shrunken_means(train=samples[:, :4], validation=samples[:, 4:])


def test_the_problem_is_right_and_its_closed_form_too(shrunken_means):
    truth, x = shrunken_means, jnp.array([0.3, -0.2, 0.9])
    assert bx.check(truth.problem, points=2).ok
    np.testing.assert_allclose(bx.exact_objective(truth.problem, x), truth.objective(x), rtol=1e-12)
    np.testing.assert_allclose(bx.exact_gradient(truth.problem, x), jax.grad(truth.objective)(x), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(bx.exact_gradient(truth.problem, truth.solution), np.zeros(3), atol=1e-12)


def test_the_problem_refuses_samples_of_another_shape(shrunken_means):
    make = importlib.import_module("problem").shrunken_means
    with pytest.raises(ValueError, match=r"validation must be of shape .*; got \(3, 2\)"):
        make(train=np.zeros((3, 4, 2)), validation=np.zeros((3, 2)))


def table_of_rooms():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.findall(r"^\| `([\w./]+)` \|", text, flags=re.MULTILINE)


def test_contributing_names_every_room_once_and_no_other():
    source = ROOT / "src" / "bilevax"
    files = {path.name for path in source.glob("*.py")}
    folders = {f"{path.name}/" for path in source.iterdir() if any(path.glob("*.py"))}
    assert sorted(table_of_rooms()) == sorted(files | folders)


FOLDERS = [ROOT, ROOT / "src" / "bilevax", ROOT / "src" / "bilevax" / "algorithms"]
OTHERS = ["CONTRIBUTING.md", "README.md", "docs/design.md", "docs/guide.md", "docs/results.md"]


@pytest.mark.parametrize("page", [*OTHERS, *(f"docs/developer/{page}" for page in ["README.md", *PAGES])])
def test_what_a_page_links_to_and_names_is_there(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    folders = re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]*)`", text)
    files = [name for name in re.findall(r"`([\w-]+/[\w./-]*\.py)`", text) if "skeletons" not in name]
    assert links
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []
    missing = lambda name: not any((folder / name).exists() for folder in FOLDERS)
    assert [name for name in folders + files if missing(name)] == []
