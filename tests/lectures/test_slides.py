"""A talk in a real browser: from the first slide to the last, with all cells run, at both sizes of a projector."""

import contextlib
import os
import re
import shutil
from pathlib import Path

import pytest

from lectures import rehearsal, show, talk

CHROMIUM = shutil.which("chromium")
LOOK_AT = os.environ.get("LOOK_AT")  # a folder for pictures of all slides

# What is wrong with the slide that is shown: a list of sentences.
MEASURE = """() => {
  const wrong = [], least = 0.0222 * innerHeight;
  const seen = [...document.querySelectorAll('.jp-Notebook .jp-Cell:not(.lecture-off)')];
  const outer = document.querySelector('.jp-Notebook .jp-WindowedPanel-outer');
  if (outer.scrollWidth > outer.clientWidth + 1) wrong.push('the slide is wider than the screen');
  for (const cell of seen) {
    const text = cell.querySelector(':scope .jp-RenderedMarkdown'), bottom = outer.getBoundingClientRect().bottom;
    if (text && text.getBoundingClientRect().bottom > bottom + 1) wrong.push('text below the screen: ' + text.innerText.slice(0, 60));
    for (const box of cell.querySelectorAll('.cm-scroller, .jp-RenderedText pre, .jp-RenderedHTMLCommon'))
      if (box.scrollWidth > box.clientWidth + 1) wrong.push('cut off: ' + box.innerText.slice(0, 60));
    for (const image of cell.querySelectorAll('img')) {
      const {width, height} = image.getBoundingClientRect();
      if (!width || width > innerWidth || height > innerHeight) wrong.push(`a figure of ${width} by ${height}`);
      // On less room than figures.py counts on, type is smaller than 18 pt at 1080 lines.
      const fair = Math.min(image.parentElement.clientWidth / image.naturalWidth, 0.58 * innerHeight / image.naturalHeight);
      const shown = Math.min(width / image.naturalWidth, height / image.naturalHeight);
      if (shown < 0.97 * fair) wrong.push(`a figure with small type: ${Math.round(100 * shown / fair)} % of what it should be`);
      let end = bottom;
      for (let area = image.closest('.jp-OutputArea'); area; area = area.parentElement.closest('.jp-OutputArea'))
        end = Math.min(end, area.getBoundingClientRect().bottom + 1);
      if (image.getBoundingClientRect().bottom > end) wrong.push('the figure is not all to be seen');
    }
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const element = texts.currentNode.parentElement;
      if (!texts.currentNode.textContent.trim() || !element.checkVisibility() || !element.getClientRects().length) continue;
      if (element.closest('mjx-container, .katex, sub, sup, style, script')) continue;
      const size = parseFloat(getComputedStyle(element).fontSize);
      if (size < least) wrong.push(`type of ${size} px: ${element.textContent.slice(0, 40)}`);
    }
  }
  for (const cell of seen) if (cell.querySelector('[data-mime-type*=stderr]')) wrong.push('a warning');
  if (!seen.length) wrong.push('an empty slide');
  return [...new Set(wrong)];
}"""
RUNS = "() => !document.querySelector('.lecture-runs') && !document.body.classList.contains('lecture-busy')"
LEFT = "() => document.querySelectorAll('.jp-Notebook .jp-CodeCell:not(.lecture-off):not(.lecture-ran)').length"


@pytest.fixture
def lecture(tmp_path):
    """A talk in a browser, as `make lecture` opens it: the page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play, contextlib.ExitStack() as stack:
        browser = stack.enter_context(play.chromium.launch(executable_path=CHROMIUM, args=rehearsal.CHROMIUM_FLAGS))

        def start(part, width, height, minutes=None):
            talk_opened = rehearsal.open_talk(browser, part, tmp_path, width=width, height=height, minutes=minutes)
            return stack.enter_context(talk_opened)[0]

        yield start


def place(page):
    """The number of the slide that is shown, and of all slides."""
    return tuple(int(number) for number in re.search(r"(\d+) / (\d+)", page.inner_text(".lecture-corner")).groups())


def run_slide(page):
    """Run all cells of the slide by Shift-Enter."""
    page.wait_for_function(RUNS, timeout=90_000)
    for _ in range(page.evaluate(LEFT)):
        before = page.evaluate(LEFT)
        page.keyboard.press("Shift+Enter")
        page.wait_for_function(f"before => ({LEFT})() < before", arg=before, timeout=180_000)
        page.wait_for_function(RUNS, timeout=180_000)
    page.wait_for_timeout(300)


def go_through(page, name):
    """From the first slide to the last by a presenter's remote, all cells run; what is wrong, by slide."""
    wrong, (_, last), seen = {}, place(page), []
    while True:
        run_slide(page)
        number, _ = place(page)
        found = page.evaluate(MEASURE) + [f"not run: {n}" for n in [page.evaluate(LEFT)] if n]
        if found:
            wrong[number] = found
        if LOOK_AT:
            Path(LOOK_AT).mkdir(exist_ok=True)
            page.screenshot(path=f"{LOOK_AT}/{name}-{number:02}-{len(seen):02}.png")
        seen.append(number)
        before = page.evaluate("document.querySelectorAll('.jp-Cell:not(.lecture-off)').length"), number
        page.keyboard.press("PageDown")
        if (page.evaluate("document.querySelectorAll('.jp-Cell:not(.lecture-off)').length"), place(page)[0]) == before:
            break
    assert number == last and sorted(set(seen)) == list(range(1, last + 1))
    return wrong


if CHROMIUM:  # without it there is nothing to test in; conftest.py says so

    @pytest.mark.parametrize(
        ("part", "width", "height", "minutes"),
        [("06_megatron_backward", 1280, 720, None), ("02_process_groups", 1920, 1080, None), ("06_megatron_backward", 1280, 720, 15)],
    )
    def test_a_talk_from_the_first_slide_to_the_last(lecture, part, width, height, minutes):
        page = lecture(part, width, height, minutes)
        assert place(page) == (1, len(talk.slides(talk.talk(part, minutes))))
        assert go_through(page, f"{part}-{height}") == {}

    def test_keys_notes_changed_code_and_a_slider(lecture):
        page = lecture("00_warmup", 1280, 720)
        (_, last), keys = place(page), page.keyboard
        keys.press("ArrowLeft")
        assert place(page)[0] == 1
        for key, slide in (("ArrowRight", 2), ("PageDown", 3), ("PageUp", 2), ("ArrowLeft", 1), ("End", last), ("Home", 1)):
            keys.press(key)
            assert place(page)[0] == slide, key
        for key, dark in (("b", True), ("b", False), (".", True), (".", False)):
            keys.press(key)
            assert page.evaluate("document.body.classList.contains('lecture-dark')") == dark
        with page.expect_popup() as opened:
            keys.press("n")
        notes = opened.value
        notes.wait_for_function("document.body.innerText.includes('Slide 1 of')")
        assert "The first deadlock is on purpose" in notes.inner_text("main") and "Next: Eight processes" in notes.inner_text("footer")
        notes.keyboard.press("PageDown")
        assert place(page)[0] == 2, "the remote works there, too"
        page.bring_to_front()
        keys.press("PageDown")
        run_slide(page)  # what it needs and what no slide shows runs before
        keys.press("Enter")
        keys.press("Control+End")
        keys.type("\nprint('changed', rank)\n__import__('time').sleep(3.2)")
        keys.press("ArrowRight")
        assert place(page)[0] == 3, "who writes has the arrows"
        for _ in range(2):  # the notebook behind the slides, and back
            keys.press("Escape")
            keys.press("Alt+r")
        keys.press("Enter")
        keys.press("Control+End")
        keys.type("#")
        assert place(page)[0] == 3 and page.evaluate("document.activeElement.closest('.cm-editor') !== null"), "Enter writes at once"
        keys.press("Shift+Enter")
        page.wait_for_function("[...document.querySelectorAll('.jp-OutputArea')].some(o => o.innerText.includes('changed 7'))")
        notes.wait_for_function("/print the rank: about [3-9] s here/.test(document.body.innerText)")
        keys.press("Escape")
        keys.press("End")
        while not page.evaluate("document.querySelector('.jp-Cell:not(.lecture-off)').innerText.includes('come from?')"):
            keys.press("PageUp")
        run_slide(page)
        picture = page.wait_for_selector(".jp-Cell:not(.lecture-off) img.widget-image")
        before, here = picture.get_attribute("src"), place(page)
        page.focus(".jp-Cell:not(.lecture-off) .noUi-handle")
        keys.press("ArrowRight")
        shown = "document.querySelector('.jp-Cell:not(.lecture-off) img.widget-image').src"
        page.wait_for_function(f"was => {shown} !== was", arg=before)
        assert place(page) == here

    def test_who_goes_on_too_soon_finds_all_run_in_its_order(lecture):
        page = lecture("00_warmup", 1280, 720)
        for key in ("PageDown", "Shift+Enter", "Shift+Enter", "PageDown", "Shift+Enter", "Shift+Enter"):  # ranks take a second to start
            page.keyboard.press(key)
        page.wait_for_function(
            "[...document.querySelectorAll('.jp-OutputArea')].some(o => o.innerText.includes('I am odd'))", timeout=90_000
        )
        page.wait_for_function(RUNS)
        assert not page.evaluate("document.querySelectorAll('[data-mime-type*=error], [data-mime-type*=stderr]').length")
        numbers = "[...document.querySelectorAll('.jp-InputPrompt')].map(prompt => prompt.textContent.trim())"  # folded cells have none
        assert "[4]:" in page.evaluate(numbers), "each once"

    def test_an_endless_cell_is_stopped_by_a_key_and_the_talk_goes_on(lecture):
        page = lecture("00_warmup", 1280, 720)
        page.keyboard.press("PageDown")
        page.keyboard.press("PageDown")
        run_slide(page)
        page.keyboard.press("Enter")
        page.keyboard.press("Control+End")
        page.keyboard.type("\nwhile True: pass")
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector("body.lecture-busy", state="attached")
        page.keyboard.press("Escape")
        page.keyboard.press("i")
        page.wait_for_selector("text=the cell was stopped", timeout=90_000)
        page.keyboard.press("PageDown")
        run_slide(page)
        assert not page.evaluate("document.querySelectorAll('.jp-Cell:not(.lecture-off) [data-mime-type*=error]').length")

    def test_a_strip_shows_what_each_rank_does_while_a_cell_waits_and_after_an_interrupt(lecture):
        page = lecture("00_warmup", 1280, 720)
        strip = "document.querySelector('.lecture-strip').innerText"
        page.keyboard.press("r")
        page.wait_for_function(f"{strip}.includes('No ranks have been started yet.')")
        page.keyboard.press("PageDown")
        page.keyboard.press("PageDown")
        run_slide(page)
        page.wait_for_function("document.querySelectorAll('.lecture-strip .resting').length === 8")
        page.keyboard.press("Enter")
        page.keyboard.press("Control+End")
        page.keyboard.type("\nfrom course_lib.collectives import Communicator\nwhile rank == 3: pass\nCommunicator().Barrier()")
        page.keyboard.press("Shift+Enter")
        page.wait_for_function("document.querySelectorAll('.lecture-strip .waits').length === 7", timeout=90_000)
        shown = page.evaluate("[...document.querySelectorAll('.lecture-strip div')].map(cell => cell.innerText.split(/\\s+/))")
        assert [" ".join([*words[:3], *words[5:]]) for words in shown] == [
            "▶ rank 3 computing" if rank == 3 else f"‖ rank {rank} waits for 3" for rank in range(8)
        ]
        sizes = "[...document.querySelectorAll('.lecture-strip *')].map(e => parseFloat(getComputedStyle(e).fontSize))"
        assert min(page.evaluate(sizes)) >= 0.0222 * 720
        assert page.evaluate("document.querySelector('.lecture-strip').scrollHeight") < 0.17 * 720
        if LOOK_AT:
            Path(LOOK_AT).mkdir(exist_ok=True)
            page.screenshot(path=f"{LOOK_AT}/strip.png")
        page.keyboard.press("Escape")
        page.keyboard.press("i")
        page.wait_for_function("document.querySelectorAll('.lecture-strip .raised').length === 8", timeout=90_000)
        page.wait_for_function(RUNS)
        page.keyboard.press("Control+s")
        page.wait_for_timeout(1000)
        page.reload()
        page.wait_for_selector("body.lecture .lecture-corner", timeout=60_000)
        page.keyboard.press("r")
        page.wait_for_function("document.querySelectorAll('.lecture-strip .raised').length === 8", timeout=60_000)
        page.keyboard.press("r")
        assert not page.is_visible(".lecture-strip")

    def test_an_error_before_the_slide_is_shown_and_tried_again(lecture, tmp_path):
        path, _ = show.put_talk("00_warmup", None, tmp_path, False)
        path.write_text(path.read_text().replace("cluster.start(8)", "cluster.start(how_many)"))
        page = lecture("00_warmup", 1280, 720)
        page.keyboard.press("PageDown")
        page.keyboard.press("PageDown")
        for turn in (2, 3):  # the title's picture comes first
            page.keyboard.press("Shift+Enter")
            error = page.wait_for_selector(f"text=/In.{turn}., line/", timeout=90_000)
            page.wait_for_function(RUNS)
            assert error.is_visible()
            assert page.evaluate("document.querySelectorAll('.lecture-failed').length") == 1, "it has run, and is not green"

    def test_who_begins_at_the_end_has_all_before_it_run_first(lecture):
        page = lecture("01_data_split", 1280, 720, minutes=15)
        assert place(page)[1] == len(talk.slides(talk.talk("01_data_split", 15)))
        page.keyboard.press("End")
        page.keyboard.press("Shift+Enter")  # the ranks were never started: it does that first
        page.wait_for_function(RUNS, timeout=90_000)
        assert page.evaluate("document.querySelectorAll('.jp-Cell:not(.lecture-off) .jp-RenderedText[data-mime-type*=error]').length") == 0
