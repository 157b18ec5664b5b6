"""The report in a real browser: it draws, switches, hides, fits a phone, follows the dark and asks no server."""

import base64
import io
import json
import shutil
import time

import numpy as np
import pytest
from reference.stored_runs import MARKUP, rows_of, store

from bilevax.lab.report import write_report

pytest.importorskip("matplotlib")
pytest.importorskip("plotly")
pytest.importorskip("selenium")

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
HOW = "needs a browser: apt-get install --no-install-recommends chromium chromium-driver"
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason=HOW)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
FIGURES = {"figure1": ("a1a", "a8a", "w1a", "w8a"), "figure2": ("a1a-200", "w1a-200", "a1a-500", "w1a-500")}
DRAWN = [4, 5, 4, 4] * 2 + [4] * 8 + [1] * 2  # a line and a band for each method, no band where there is one seed
CURVES = """return [...document.querySelectorAll('.plot')]
    .map(plot => plot.querySelectorAll('.scatterlayer .js-line').length)"""
TITLES = """return [...document.querySelectorAll('#experiment-0 ~ .panels:not([hidden]) .plot')]
    .map(plot => plot.querySelector('.{}title').textContent)"""
WHOLE = "return [document.documentElement.scrollWidth, window.innerWidth]"


def made_up_runs(folder):
    """Both figures with two methods and two seeds each, one method with markup in its name, one diverged; Table 1."""
    samples = list(range(0, 1001, 50))
    for experiment, problems in FIGURES.items():
        champion = "svrb" if experiment == "figure1" else "re_rsvrb"
        for problem in problems:
            for seed in range(2):
                for speed, algorithm in ((150 + 20 * seed, champion), (400 + 50 * seed, "stable")):
                    more = {"label": MARKUP} if algorithm == "stable" else {}
                    fall = [0.1 + 0.6 * float(np.exp(-s / speed)) for s in samples]
                    store(folder, rows_of(samples, fall), problem, algorithm, seed, experiment, **more)
    exploding = rows_of([0, 100, 200], [0.7, 0.6, 1e6])
    store(folder, exploding, "a8a", "ttsa", status="diverged", message="not finite at step 3")
    for m in (1, 10):
        rows = [{"epsilon": 10.0**-k, "samples": m * 10.0 ** (2 * k)} for k in (1, 2, 3)]
        store(folder, rows, f"m = {m}", experiment="table1", theory=3, exponent=2.0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    made_up_runs(folder)
    write_report(folder)
    return (folder / "report.html").as_uri()


@pytest.fixture
def opened(browser, address):
    """The page, freshly opened on a wide screen in the light."""

    def at(width=1400, scheme="light"):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        set_scheme(browser, scheme)
        browser.get(address)
        if width > 600:
            assert draws(browser, DRAWN)
        return browser

    return at


def set_scheme(browser, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def soon(browser, script, right):
    """Whether what the script gives is right within ten seconds: drawing may end a frame after what asked for it."""
    end = time.monotonic() + 10
    while not (held := right(browser.execute_script(script))) and time.monotonic() < end:
        time.sleep(0.05)
    return held


def draws(browser, counts):
    return soon(browser, CURVES, lambda found: found == counts)


def has_titles(browser, axis, titles):
    """Whether these are the titles of all panels of Figure 1 that are shown."""
    return soon(browser, TITLES.format(axis), lambda found: found == titles)


def choose(browser, name, value):
    browser.execute_script(f"document.querySelector('input[name={name}][value={value}]').click()")


def button(browser, label, experiment=0):
    found = browser.find_elements("css selector", f'.legend button[data-experiment="{experiment}"]')
    return next(candidate for candidate in found if candidate.text == label)


def brightness(color):
    return sum(int(part) for part in color[color.index("(") + 1 : -1].split(",")[:3]) / 3


def test_every_panel_is_drawn_without_errors_and_without_asking_the_network(opened):
    browser = opened()
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    of_page = [params["request"]["url"] for params in asked if params["documentURL"] == browser.current_url]
    assert of_page == [browser.current_url]  # and the browser's own first page, which asks for its own parts


def test_a_name_with_markup_is_shown_as_it_is_written(opened):
    browser = opened()
    assert button(browser, MARKUP).is_displayed()
    hover = "const plot = document.querySelector('.plot'); Plotly.Fx.hover(plot, [{curveNumber: 3, pointNumber: 4}]);"
    browser.execute_script(hover)
    shown = browser.execute_script("return document.querySelector('.hoverlayer').textContent")
    for words in (MARKUP, "200 samples", "F = ", "2 seeds: "):
        assert words in shown


def test_a_legend_button_hides_its_curves_in_all_panels_and_shows_them_again(opened):
    browser = opened()
    pressed = button(browser, "SVRB")
    pressed.click()
    assert draws(browser, [2, 3, 2, 2] * 2 + DRAWN[8:])
    assert pressed.get_attribute("aria-pressed") == "false"
    pressed.send_keys(" ")  # by the keyboard, too
    assert draws(browser, DRAWN)
    assert pressed.get_attribute("aria-pressed") == "true"


def test_samples_and_seconds_are_switched_for_the_whole_page(opened):
    browser = opened()
    assert has_titles(browser, "x", ["samples"] * 4 + ["seconds"] * 4)
    choose(browser, "against", "seconds")
    assert has_titles(browser, "x", ["seconds"] * 4)
    choose(browser, "against", "samples")
    assert has_titles(browser, "x", ["samples"] * 4)


def test_scales_are_switched_for_the_whole_page(opened):
    browser = opened()
    scales = "return ['xaxis', 'yaxis'].map(name => document.querySelector('.plot')._fullLayout[name].type)"
    assert soon(browser, scales, lambda found: found == ["linear", "linear"])
    assert has_titles(browser, "y", ["F(x)"] * 8)
    choose(browser, "y", "log")
    assert soon(browser, scales, lambda found: found == ["linear", "log"])
    assert has_titles(browser, "y", ["F(x) − F*"] * 8)
    choose(browser, "x", "log")
    assert soon(browser, scales, lambda found: found == ["log", "log"])
    assert draws(browser, DRAWN)
    assert browser.get_log("browser") == []


def test_a_run_that_explodes_leaves_the_axis_readable(opened):
    browser = opened()
    top = "return document.querySelectorAll('.plot')[1]._fullLayout.yaxis.range[1]"
    assert browser.execute_script(top) < 1


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_one_column_and_does_not_scroll_sideways(opened, width):
    browser = opened(width)
    browser.execute_script("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    whole, seen = browser.execute_script(WHOLE)
    assert whole <= seen == width
    panels = browser.find_elements("css selector", ".panels:not([hidden]) .panel")
    assert len({panel.rect["x"] for panel in panels}) == 1
    assert len(panels) == 4 + 4 + 2


def test_the_page_and_its_plots_follow_the_dark_while_open(opened):
    browser = opened()
    backgrounds = """return [document.body, ...document.querySelectorAll('.plot .main-svg:first-child')]
        .map(element => getComputedStyle(element).backgroundColor)"""
    assert soon(browser, backgrounds, lambda colors: len(colors) > 18 and min(map(brightness, colors)) > 200)
    set_scheme(browser, "dark")
    assert soon(browser, backgrounds, lambda colors: len(colors) > 18 and max(map(brightness, colors)) < 50)


def test_what_is_seen_has_many_colours(opened):
    from matplotlib.image import imread

    browser = opened()
    shot = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {})["data"])
    pixels = (imread(io.BytesIO(shot))[..., :3].reshape(-1, 3) * 255).round().astype(int)
    colors = np.unique(pixels, axis=0).tolist()
    assert len(colors) > 50
    assert [0xD5, 0x5E, 0x00] in colors  # that of SVRB


def test_the_page_of_cleaned_rows_shows_its_picture_fits_a_phone_and_asks_no_server(browser, tmp_path):
    from reference.dirty_tables import rows

    from bilevax.cleaning import clean_table

    for name, seed, wrong in (("given", 0, 0.2), ("sure", 1, 0.0)):
        rows(80, seed, wrong)[0].to_csv(tmp_path / f"{name}.csv", index=False)
    *_, page = clean_table(tmp_path / "given.csv", "kind", tmp_path / "sure.csv", tmp_path / "out")
    for width in (1400, 380):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        drawn = "return [...document.images].map(image => image.complete && image.naturalWidth > 100)"
        assert soon(browser, drawn, lambda found: found == [True])
        scrolled, inner = browser.execute_script(WHOLE)
        assert scrolled <= inner
    assert browser.execute_script("return document.querySelectorAll('tbody tr').length") >= 20
    asked = "return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('data:'))"
    assert browser.execute_script(asked) == []
