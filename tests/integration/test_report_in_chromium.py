"""The page of a recorded run in a real browser, on a desk and on a telephone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from pipelines.reporting import gathering, page, sections
from simcse_platform.sweep.space import parse
from simcse_platform.sweep.sweep import SearchPlan, TrialResult
from support.recorded import record_sweep, run_settings, write_pairs

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="there is no Chromium with its driver: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def report(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep, which has every kind of block."""
    folder = tmp_path_factory.mktemp("report")
    run = run_settings(tiny_encoder, write_pairs(folder / "pairs.tsv"))
    space = parse(["objective.temperature=0.05,0.2", "optim.learning_rate=1e-5,1e-4"], run)
    points = [(t, r) for t in ("0.05", "0.2") for r in ("1e-5", "1e-4")]
    results = [
        TrialResult(
            name=f"sweep-{place}",
            assignments={"objective.temperature": t, "optim.learning_rate": r},
            status="finished",
            rows=640,
            score=score,
            scores={"dev_pairs_spearman": score},
        )
        for place, ((t, r), score) in enumerate(zip(points, (70.5, 8.25, 69, 9.5), strict=True))
    ]
    record_sweep(folder / "runs", "sweep", run, space, SearchPlan(sampler="grid"), results)
    found = gathering.find("sweep", folder / "runs", None)
    gathered = gathering.gather(found, gathering.Wanted(), folder / "runs")
    file = folder / "report.html"
    file.write_text(page.render(sections.page_of(gathered, written="Written for a test.")))
    return file


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chrome]:
    options = ChromeOptions()
    assert BROWSER is not None
    options.binary_location = BROWSER
    # Its sandbox is not for root, and a container's /dev/shm is small.
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options=options, service=ChromeService(executable_path=DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def shown(chromium: Chrome, report: Path) -> Chrome:
    """The page, opened anew on a desk."""
    resize(chromium, 1200, 900)
    chromium.get(report.as_uri())
    return chromium


def resize(browser: Chrome, width: int, height: int) -> None:
    # A window has a least width of its own; what the page sees has none.
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def figures(browser: Chrome) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, "figure svg")


def table(browser: Chrome, caption: str) -> WebElement:
    return browser.find_element(By.XPATH, f"//table[caption[text()='{caption}']]")


def column(found: WebElement, place: int) -> list[str]:
    return [cell.text for cell in found.find_elements(By.CSS_SELECTOR, f"td:nth-child({place})")]


def test_it_renders_without_an_error_on_the_console(shown: Chrome) -> None:
    assert shown.title == "sweep: sweep"
    assert shown.find_element(By.TAG_NAME, "h1").text == "sweep"
    assert shown.execute_script("return document.compatMode") == "CSS1Compat"
    assert shown.get_log("browser") == []
    requested = shown.execute_script("return performance.getEntriesByType('resource').length")
    assert requested == 0


@pytest.mark.parametrize("width", [1200, 390])
def test_every_figure_is_seen(shown: Chrome, width: int) -> None:
    resize(shown, width, 900)
    drawn = figures(shown)
    assert len(drawn) == 11
    for figure in drawn:
        assert figure.is_displayed()
        assert figure.size["width"] > 200
        assert figure.size["height"] > 100
        assert figure.find_elements(By.TAG_NAME, "text")


def test_a_header_sorts_and_sorts_back(shown: Chrome) -> None:
    trials = table(shown, "The best first")
    by_score = trials.find_elements(By.TAG_NAME, "th")[4]
    assert column(trials, 5) == ["70.50", "69.00", "9.50", "8.25"]
    by_score.find_element(By.TAG_NAME, "button").click()
    # By size: as text, 70.50 would be before 8.25.
    assert column(trials, 5) == ["8.25", "9.50", "69.00", "70.50"]
    assert column(trials, 1) == ["sweep-1", "sweep-3", "sweep-2", "sweep-0"]
    assert by_score.get_attribute("aria-sort") == "ascending"
    by_score.find_element(By.TAG_NAME, "button").click()
    assert column(trials, 5) == ["70.50", "69.00", "9.50", "8.25"]
    assert by_score.get_attribute("aria-sort") == "descending"

    by_name = trials.find_elements(By.TAG_NAME, "th")[0]
    by_name.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert column(trials, 1) == [f"sweep-{place}" for place in range(4)]
    assert by_name.get_attribute("aria-sort") == "ascending"
    assert by_score.get_attribute("aria-sort") is None


def test_a_cell_without_a_number_is_last_either_way(shown: Chrome) -> None:
    trials = table(shown, "The best first")
    shown.execute_script(
        "const cell = arguments[0]; cell.textContent = '-'; delete cell.dataset.value",
        trials.find_element(By.CSS_SELECTOR, "td:nth-child(5)"),
    )
    button = trials.find_elements(By.CSS_SELECTOR, "th button")[4]
    button.click()
    assert column(trials, 5) == ["8.25", "9.50", "69.00", "-"]
    button.click()
    assert column(trials, 5) == ["69.00", "9.50", "8.25", "-"]


@pytest.mark.parametrize("width", [1200, 390, 320])
def test_only_what_is_wide_scrolls_sideways(shown: Chrome, width: int) -> None:
    resize(shown, width, 800)
    assert shown.execute_script("return window.innerWidth") == width
    assert shown.execute_script("return document.documentElement.scrollWidth") <= width
    inner = "const box = arguments[0]; return box.scrollWidth > box.clientWidth"
    trials = table(shown, "The best first").find_element(By.XPATH, "..")
    assert shown.execute_script(inner, trials) is (width < 500)


@pytest.mark.parametrize("width", [1200, 390])
def test_text_is_large_enough_to_read(shown: Chrome, width: int) -> None:
    resize(shown, width, 800)
    for found in shown.find_elements(By.TAG_NAME, "summary"):
        found.click()
    sizes = shown.execute_script(
        """
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        const sizes = [];
        while (walker.nextNode()) {
          const holder = walker.currentNode.parentElement;
          if (walker.currentNode.data.trim() && !holder.closest("svg, script")) {
            sizes.push(parseFloat(getComputedStyle(holder).fontSize));
          }
        }
        return sizes;
        """
    )
    assert len(sizes) > 100
    assert min(sizes) >= 14
    assert shown.execute_script("return parseFloat(getComputedStyle(document.body).fontSize)") == 16
    # The text of a figure shrinks with it, and stays legible.
    sizes = shown.execute_script(
        """
        return [...document.querySelectorAll("svg text")].map((text) => {
          const place = text.getCTM();
          return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(place.a, place.b);
        });
        """
    )
    assert len(sizes) > 100
    assert min(sizes) > 8.5


def test_an_error_on_the_console_would_be_seen(chromium: Chrome, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<script>nothing.there()</script>")
    chromium.get(broken.as_uri())
    (entry,) = chromium.get_log("browser")
    assert "nothing is not defined" in entry["message"]
