"""The HTML report in a browser: clicks, layout and colours, in light and dark, on wide and narrow screens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from repot.chaos.report import files
from repot.waiting import wait_until
from support.browser import WITHIN_S, Reader, open_browser
from support.campaigns import SCENARIOS, campaign

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Remote


DETAILS = "#ack-cut/redis-stock/plain"
#: Cells that are not as expected, and how many there are of them in `campaign()`.
UNEXPECTED = ".matrix td.unexpected"
SIZES = [(1280, 900), (400, 800)]
SCHEMES = ["light", "dark"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with open_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a campaign with every status and verdict."""
    found = tmp_path_factory.mktemp("page") / "files.html"
    files.write(files.as_html(campaign()), found)
    return found


@pytest.fixture
def reader(browser: Remote, page: Path) -> Reader:
    """The page in the browser, without an error in the console."""
    found = Reader(browser, page.as_uri())
    found.opens()
    assert found.complaints == []
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_click_in_the_matrix_opens_details_in_view(reader: Reader, width: int, height: int, scheme: str) -> None:
    """They have a timeline with a lane for each worker, and a visible fault window."""
    reader.opens(width=width, height=height, scheme=scheme)
    details = reader.one(f"details:has([id='{DETAILS[1:]}'])")
    assert details.get_attribute("open") is None
    reader.clicks(f".matrix a[href='{DETAILS}']")
    assert details.get_attribute("open") is not None
    top = reader.asks("arguments[0].querySelector('summary').getBoundingClientRect().top", details)
    assert 0 <= top < height / 2
    names = [text.text for text in details.find_elements(By.CSS_SELECTOR, ".timeline .name text")]
    assert names == ["sender", "target", "control", "log"]
    for kind, number in ((".lane", 4), (".fault", 2), (".run", 7), (".effect use", 7), (".again use", 1)):
        sizes = [one.rect for one in details.find_elements(By.CSS_SELECTOR, f".timeline {kind}")]
        assert number == len(sizes), kind
        assert all(size["width"] > 1 and size["height"] > 1 for size in sizes), kind
    assert reader.complaints == []


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_is_cut_off(reader: Reader, width: int, height: int) -> None:
    """The page is as wide as the screen; wider parts scroll, and every label is inside its drawing."""
    reader.opens(width=width, height=height)
    reader.asks("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert reader.asks("document.documentElement.scrollWidth <= innerWidth")
    outside = """[...document.querySelectorAll('.timeline:not(.key)')].flatMap((drawing) => {
        const room = drawing.getBoundingClientRect();
        return [...drawing.querySelectorAll('text')].filter((text) => {
            const own = text.getBoundingClientRect();
            return own.left < room.left - 1 || own.right > room.right + 1 || own.bottom > room.bottom + 1;
        }).map((text) => text.textContent);
    })"""
    assert reader.asks(outside) == []
    too_wide = """[...document.querySelectorAll('.matrix td *, .matrix th *, summary, .log li, .command, .counts li')]
        .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 1
            && !one.classList.contains('away')).map((one) => one.textContent)"""
    assert reader.asks(too_wide) == []


def test_labels_do_not_overlap(reader: Reader) -> None:
    """In no timeline do two texts overlap."""
    reader.asks("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    meeting = """[...document.querySelectorAll('.timeline:not(.key)')].flatMap((drawing) => {
        const texts = [...drawing.querySelectorAll('text')].map((one) =>
            [one.textContent, one.getBoundingClientRect()]);
        return texts.flatMap(([name, one], place) => texts.slice(place + 1).filter(([, other]) =>
            one.left < other.right && other.left < one.right && one.top + 2 < other.bottom && other.top + 2 < one.bottom
        ).map(([other]) => `${name} / ${other}`));
    })"""
    assert reader.asks(meeting) == []


def test_the_filter(reader: Reader) -> None:
    """It shows the scenarios with matching cells, and of those only matching details."""
    everything = len(reader.shown("details.cell"))
    assert len(SCENARIOS) == len(reader.shown(".matrix tbody tr"))
    reader.clicks("input[value=unexpected]")
    unexpected = len(reader.shown("details.cell"))
    assert unexpected == len(reader.all("details.cell[data-unexpected]"))
    assert unexpected == len(reader.all(".matrix td:not(.dim)"))
    assert 0 < unexpected < everything
    reader.clicks("input[value=bad]")
    assert len(reader.shown("details.cell")) == len(reader.all("details.cell[data-bad]"))
    reader.clicks("input[value='']")
    reader.one("input[type=search]").send_keys("SIGKILL")
    assert [row.text for row in reader.shown(".matrix tbody th a")] == ["worker-killed"]
    assert [section.get_attribute("aria-labelledby") for section in reader.shown(".scenario")] == ["worker-killed"]
    assert reader.one("output").text == "1 of 5 scenarios"
    reader.one("input[type=search]").send_keys(Keys.CONTROL + "a", Keys.DELETE)
    assert everything == len(reader.shown("details.cell"))
    assert reader.complaints == []


def test_a_filtered_cell_can_be_opened(reader: Reader) -> None:
    """It is dimmed in the matrix, and still a link."""
    reader.clicks("input[value=unexpected]")
    reader.clicks(".matrix a[href='#ack-cut/redis-stock/guarded']")
    assert reader.one("[id='ack-cut/redis-stock/guarded']").is_displayed()


def test_heads_stay_in_view(reader: Reader) -> None:
    """The headings of a matrix that is scrolled to its end are visible."""
    reader.opens(width=400, height=300)
    reader.asks("(() => { const one = document.querySelector('.matrix'); one.scrollTo(9999, 9999); })()")
    room = reader.one(".matrix").rect
    for selector in (".matrix thead th:last-child", ".matrix tbody tr:last-child th"):
        rect = reader.one(selector).rect
        assert room["y"] <= rect["y"] < room["y"] + room["height"], selector
    assert abs(reader.one(".matrix tbody tr:last-child th").rect["x"] - room["x"]) <= 2


def test_by_keyboard(reader: Reader) -> None:
    """Tab reaches the cells in order, and Enter opens one."""
    reader.asks("document.querySelector('.matrix').focus()")
    for _ in range(3):
        reader.browser.switch_to.active_element.send_keys(Keys.TAB)
    assert reader.asks("document.activeElement.getAttribute('href')") == "#ack-cut/redis-stock/guarded"
    reader.browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert reader.one("[id='ack-cut/redis-stock/guarded']").is_displayed()


def test_without_script(reader: Reader) -> None:
    """The link still opens the details; only the filter is missing."""
    reader.opens(script=False)
    assert not reader.one("#filter").is_displayed()
    reader.one(f".matrix a[href='{DETAILS}']").click()
    wait_until(reader.one(f"[id='{DETAILS[1:]}']").is_displayed, within_s=WITHIN_S, what="the details are open")


def test_a_log_cannot_run_a_script(reader: Reader) -> None:
    """A script in a log is shown as text."""
    reader.clicks(f".matrix a[href='{DETAILS}']")
    assert "<script>document.title = 'planted'" in reader.one(".cell[open] .log").text
    assert "planted" not in reader.browser.title
    assert len(reader.all("script")) == 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read(reader: Reader, scheme: str) -> None:
    """The contrast of every status meets WCAG level AA."""
    reader.opens(scheme=scheme)
    colours = reader.asks(
        """[...document.querySelectorAll('.matrix td > a')].map((one) => {
            const painted = (colour) => {
                const context = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d');
                context.fillStyle = colour;
                context.fillRect(0, 0, 1, 1);
                return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
            };
            const style = getComputedStyle(one);
            return style.backgroundImage === 'none' && [painted(style.color), painted(style.backgroundColor)];
        })"""
    )
    found = [_contrast(*pair) for pair in colours if pair]
    assert len(found) > len(SCENARIOS)
    assert min(found) >= 4.5


def _contrast(one: list[int], other: list[int]) -> float:
    """Return the contrast ratio of two colours by WCAG."""

    def luminance(colour: list[int]) -> float:
        red, green, blue = (
            part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)
