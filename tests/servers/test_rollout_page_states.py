"""The page of a rollout in each of its states, as one file in a browser; no broker is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import axe_core_python  # type: ignore[import-untyped]
import pytest

from repot.rollout.page.document import report
from support import rollout_states as states
from support.browser import Reader, open_browser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver import Remote

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()

pytestmark = pytest.mark.xdist_group("rollout page")

STATES: dict[str, Callable[[], tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "before data": states.before_data,
    "in a step": lambda: states.in_step(states.WAITS),
    "paused": states.paused,
    "abort": lambda: states.aborted("abort"),
    "aborted": states.aborted,
    "done": states.done,
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with open_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def reads(browser: Remote, tmp_path: Path) -> Callable[..., Reader]:
    """Open a state with its series."""

    def reads(found: tuple[dict[str, Any], list[dict[str, Any]]], **screen: Any) -> Reader:
        path = tmp_path / "report.html"
        path.write_text(report(*found))
        reader = Reader(browser, path.as_uri())
        reader.opens(**screen)
        return reader

    return reads


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    reads: Callable[..., Reader], state: str, width: int, scheme: str
) -> None:
    reader = reads(STATES[state](), width=width, scheme=scheme)
    assert reader.asks("document.documentElement.scrollWidth") <= width
    # no table scrolls by itself either
    assert (
        reader.asks(
            "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth)"
            ".map((one) => one.firstChild.id)"
        )
        == []
    )
    reader.browser.execute_script(AXE)
    found = reader.browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
    assert reader.complaints == []


def test_no_word_is_broken_in_the_findings_of_a_narrow_screen(reads: Callable[..., Reader]) -> None:
    reader = reads(states.in_step(states.WAITS), width=400)
    assert reader.asks(
        "[...document.querySelectorAll('#findings b')].every((one) => one.getClientRects().length === 1"
        " && one.clientWidth >= one.scrollWidth && one.offsetHeight < 30)"
    )


def test_the_time_left_in_a_step_is_shown(reads: Callable[..., Reader]) -> None:
    reader = reads(states.in_step())
    assert reader.text("#timing") == "Step 25 %: 2 min 40 s of 5 min baked. Canary for 13 min."
    assert reader.asks("((one) => [one.max, one.value])(document.getElementById('baked'))") == [300, 160]
    waiting = reads(states.in_step(states.WAITS))
    assert "A person is asked in 57 min if it stays inconclusive." in waiting.text("#timing")


def test_a_step_that_is_paused_says_for_how_long(reads: Callable[..., Reader]) -> None:
    reader = reads(states.paused())
    assert reader.text("#timing") == (
        "Step 25 %: 5 min baked, 8 min 20 s in all; it waits for a person. Paused for 2 min."
    )
    assert "A person must decide: the target finished 31 of 50 runs" in reader.text("#attention")
    state, points = states.paused()
    led = reads((state | {"controller": "the rollout 'friday' on ops-1"}, points))
    assert led.text("#timing").endswith("Paused for 2 min; the judge goes on.")


def test_what_aborted_a_step_stays_visible(reads: Callable[..., Reader]) -> None:
    reader = reads(states.aborted())
    assert reader.text("#judged") == "At the abort of the step 25 %, 3 min 21 s ago."
    # the reason first
    assert reader.text("#findings li").startswith("fail")
    # what the page says above is not said once more
    assert "Taken back by controller: failed shop.charge" in reader.text("#attention")
    assert reads(states.aborted("abort")).asks("document.getElementById('reason').hidden")
    assert reader.one("#steps .failed").get_attribute("textContent") == "25 %, taken back"
    assert "Step 25 % was taken back after 2 min 10 s." in reader.text("#timing")


def test_before_data_the_page_says_what_comes(reads: Callable[..., Reader]) -> None:
    reader = reads(states.before_data())
    assert "The first point comes with the controller's first look." in reader.text("#charts")
    assert reader.text("#tasks .nothing") == "Each task appears here after its first run."
    assert "No worker has reported yet" in reader.text("#workers")
    assert "The judge begins with the first step." in reader.text("#judged")


def test_names_of_tasks_are_text_and_the_rest_is_counted(reads: Callable[..., Reader]) -> None:
    reader = reads(states.in_step())
    assert states.HTML_TASK in reader.text("#tasks")
    assert reader.all("#tasks img") == []
    assert "7 more are not shown" in reader.text("#counted-tasks")
    cells = reader.asks("[...document.querySelectorAll('#tasks tbody tr')[1].cells].map((one) => one.textContent)")
    assert cells == ["target", "130", "3", "1", "21 ms", "0.18 s", "1 s"]


def chart(reader: Reader, place: int, what: str) -> Any:
    return reader.asks(f"document.querySelectorAll('#charts figure')[arguments[0]].{what}", place)


def texts(reader: Reader, place: int, selector: str) -> list[str]:
    found: list[str] = reader.asks(
        "[...document.querySelectorAll('#charts figure')[arguments[0]].querySelectorAll(arguments[1])]"
        ".map((one) => one.textContent)",
        place,
        selector,
    )
    return found


#: Places of charts, as the page has them.
WAITING, WAIT = 0, 5


def test_a_chart_has_axes_with_units_and_marks_of_the_steps(reads: Callable[..., Reader]) -> None:
    reader = reads(states.in_step())
    assert texts(reader, WAIT, "text.value") == ["0", "2 s", "4 s", "6 s"]
    assert texts(reader, WAIT, "text.when") == ["12:00", "12:05", "12:10"]
    assert texts(reader, WAIT, "text.mark") == ["1 %", "5 %", "25 %"]


def test_the_table_and_the_chart_have_the_same_wait(reads: Callable[..., Reader]) -> None:
    for found in (states.in_step(), states.done()):
        reader = reads(found)
        (row,) = reader.asks(
            "[...document.querySelectorAll('#sides tbody tr')].filter((one) => one.cells[0].textContent"
            ".startsWith('Wait in')).map((one) => [...one.cells].slice(1).map((cell) => cell.textContent))"
        )
        assert row == texts(reader, WAIT, "figcaption b")
        assert "since 12:" in reader.text("#counted")


def test_an_unknown_value_is_a_gap_and_not_zero(reads: Callable[..., Reader]) -> None:
    reader = reads(states.in_step())
    drawn = chart(reader, WAITING, "querySelector('svg[role] path.target').getAttribute('d')")
    assert drawn.count("M") == 2


def test_a_time_without_a_controller_is_a_gap(reads: Callable[..., Reader]) -> None:
    state, points = states.in_step()
    reader = reads((state, [one for one in points if not 400 < one["at"] - states.BEGAN_AT < 500]))
    drawn = chart(reader, WAIT, "querySelector('svg[role] path.source').getAttribute('d')")
    assert drawn.count("M") == 2


def test_the_arrow_keys_show_the_values_of_a_moment_in_all_charts(reads: Callable[..., Reader]) -> None:
    reader = reads(states.in_step())
    last = chart(reader, WAIT, "querySelector('.time').textContent")
    reader.asks("document.querySelector('#charts svg[role]').focus()")
    focused = reader.browser.switch_to.active_element
    assert focused.get_attribute("role") == "slider"
    assert focused.get_attribute("aria-valuetext") == "12:13:00: source 59, target 20"
    focused.send_keys("\ue012")
    assert (last, chart(reader, WAIT, "querySelector('.time').textContent")) == ("12:13:00 UTC", "12:12:58 UTC")
    focused.send_keys("\ue011")
    assert focused.get_attribute("aria-valuetext") == "12:00:00: source 60, target 0"
    assert chart(reader, WAITING, "querySelectorAll('circle').length") == 2
    focused.send_keys("\ue00c")
    assert chart(reader, WAITING, "querySelectorAll('circle').length") == 0


def test_a_pointer_shows_the_values_of_a_moment(reads: Callable[..., Reader]) -> None:
    reader = reads(states.in_step())
    x, y = reader.asks(
        "((one) => [one.x + one.width / 2, one.y + 60])(document.querySelector('#charts svg[role]')"
        ".getBoundingClientRect())"
    )
    reader.asks("window.scrollTo(0, arguments[0] - 300)", y)
    reader.tells("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=300)
    assert chart(reader, WAIT, "querySelector('.time').textContent")[:5] == "12:05"
