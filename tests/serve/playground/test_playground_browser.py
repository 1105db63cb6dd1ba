"""The playground as a person meets it: in a real browser, on a real server, with the built-in model."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect

from browser import open_browser, serious_findings, watched_page
from real_server import ProcessServer, serve_in_process, serve_in_thread, until
from stepping_model import PROMPT, stepping_model
from stridelm.api import LanguageModel
from stridelm.bench.page_figures import page_figures
from stridelm.bench.records import Quality, Record, read_report
from stridelm.bench.report import write_json
from stridelm.bench.subjects.ours import by_depth
from stridelm.params import SamplingParams
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.settings import ServeSettings
from stridelm.serve.trace import traced

VIEWS = ("race", "hood", "chat", "bench")
REPORT = Path(__file__).parent.parent.parent.parent / "bench" / "results" / "bench-quick.json"
KEY = "a key that nobody guesses"
SAME = Quality(identical=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessServer]:
    assert browser.is_connected()  # asked for first: without a browser no server is started
    with serve_in_process("smollm2", tmp_path_factory.mktemp("playground") / "log") as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: ProcessServer) -> Iterator[Page]:
    with watched_page(browser, f"{server.url}/") as opened:
        opened.wait_for_selector("body[data-ready]")
        yield opened


def dial(page: Page, **values: Any) -> None:
    for name, value in values.items():
        control = page.locator(f"#dial-{name}")
        if control.evaluate("node => node.tagName") == "SELECT":
            control.select_option(str(value))
        else:
            control.fill(str(value))


def race(page: Page, prompt: str = "Count from 1 to 20 in digits.", **values: Any) -> str:
    """The verdict, once both lanes are through."""
    dial(page, **values)
    page.fill("#race-prompt", prompt)
    page.click("#race-start")
    expect(page.locator("#race-start")).to_be_enabled()
    return page.inner_text("#verdict")


def noted_request(page: Page, path: str, act: Callable[[], None]) -> dict[str, Any]:
    with page.expect_request(f"**{path}") as asked:
        act()
    request: Request = asked.value
    return json.loads(request.post_data or "")


# The race


def test_a_race_ends_identical(page: Page) -> None:
    verdict = race(page, decoder="ensemble", max_tokens=40)
    assert "x the speed" in verdict and "identical: all" in verdict
    plain, other = page.locator("article.lane").all()
    assert int(plain.locator(".stride").count()) >= int(other.locator(".stride").count())
    texts = [lane.locator(".token").all_inner_texts() for lane in (plain, other)]
    assert "".join(texts[0]) == "".join(texts[1])
    for lane in (plain, other):
        for name in ("tokens/s", "tokens per forward", "first token", "forwards", "tokens"):
            assert (
                lane.locator("dl div", has=page.get_by_text(name, exact=True)).locator("dd").inner_text()[0].isdigit()
            )


def test_a_first_visit_begins_with_a_race(browser: Browser, server: ProcessServer) -> None:
    """Its gain in words, what ran, and the tree of the best pass; a page that is opened again waits for the button."""
    with watched_page(browser, f"{server.url}/", is_first_visit=True) as page:
        verdict = page.locator("#verdict")
        expect(verdict).to_contain_text("identical: all")
        expect(verdict.locator("strong")).to_have_text(re.compile(r"^The same text in .* time$"))
        expect(verdict).to_contain_text("ran by native")
        best = max(len(each["forward"]["emitted"]) for each in drafts(page))
        expect(page.locator("#race-best h3")).to_have_text(f"The pass that brought the most: {best} tokens at once")
        assert page.locator("#race-best g.is-accepted").count() == best - 1
        page.click("#race-best a")
        expect(page.locator("#view-hood")).to_be_visible()
        page.goto(f"{server.url}/#race")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        expect(page.locator("#race-start")).to_be_enabled()
        assert not page.locator(".stride").count() and not page.inner_text("#race-best")


def told_race(page: Page, seconds: float, tokens: tuple[int, int] = (1, 1)) -> None:
    """A race whose plain lane takes two seconds, and the other one so many."""

    def lane(number: int) -> dict[str, Any]:
        emitted = {"token": tokens[number], "text": "x", "source": "model", "probability": 1.0, "alternatives": []}
        row = {"kind": "pending", "parent": -1, "token": 1, "text": "x", "probability": None, "drafter": None}
        forward = {"is_own": True, "rows": [row], "accepted": [], "rejected": [], "emitted": [emitted]}
        took = {"lane": number, "seconds": (2.0, seconds)[number], "path": "toy, own steps"}
        return {**took, "text": "x", "finish_reason": "length", "forward": forward}

    lanes = [{"decoder": name, "exact": True} for name in ("autoregressive", "auto")]
    start = {"model": "toy", "exact_to": "toy", "backend": "toy", "seed": 1, "others": 0, "lanes": lanes}
    events = [json.dumps(each) for each in (start, lane(0), lane(1))]
    body = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]"))
    page.route("**/playground/race", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.click("#race-start")
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text(f"{seconds:.2f} s instead of 2.00 s")
    expect(verdict).to_contain_text("ran by toy, own steps")
    page.unroute("**/playground/race")


def test_the_gain_is_told_in_words(page: Page) -> None:
    words = {
        1.0: "about half the time",
        0.69: "about a third of the time",
        1.4: "about two thirds of the time",
        0.84: "42 % of the time",
        2.04: "about the same time",
        2.6: "130 % of the time",
    }
    verdict = page.locator("#verdict")
    for seconds, said in words.items():
        told_race(page, seconds)
        expect(verdict.locator("strong")).to_have_text(f"The same text in {said}")
        expect(verdict).to_contain_text(f"{2 / seconds:.2f}x the speed")
    expect(verdict).to_contain_text("few drafts: as measured, they do not pay here")
    told_race(page, 1.0, tokens=(1, 2))
    expect(verdict.locator("strong")).to_have_text("Another text, at 2.00x the speed")
    expect(verdict).to_contain_text("please report it")


def test_sampled_lanes_share_their_noise(page: Page) -> None:
    assert "identical" in race(page, decoder="self", temperature=1, max_tokens=32)


def test_an_answer_that_differs_is_marked_where_it_does(page: Page) -> None:
    verdict = race(page, "Tell me a story about a fox.", decoder="static", k=4, max_tokens=48)
    assert "differs from token" in verdict and "not exact" in verdict and "identical" not in verdict
    assert page.locator(".token.differs").count() == 2
    place = int(re.findall(r"token (\d+)", verdict)[0]) - 1
    for lane in page.locator("article.lane").all():
        assert "differs" in str(lane.locator(".token").nth(place).get_attribute("class"))


def test_pointing_at_a_stride_tells_how_it_came_about(page: Page) -> None:
    race(page, decoder="ensemble", max_tokens=40)
    drafted = page.locator("article.lane").nth(1).locator(".stride", has=page.locator(".token + .token")).first
    drafted.hover()
    card = page.locator("#card")
    expect(card).to_be_visible()
    for words in ("confidence", "proposed by", "instead of", "drafts accepted", "the model itself", "%"):
        expect(card).to_contain_text(words)
    assert all(cell.inner_text() for cell in card.locator("tbody td").all()), "alternatives, too"
    assert drafted.get_attribute("aria-describedby") == "card"
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    assert drafted.get_attribute("aria-describedby") is None
    rejecting = next(each for each in drafts(page) if each["forward"]["rejected"])
    page.locator("article.lane").nth(1).locator(".stride").nth(rejecting["place"]).hover()
    draft = rejecting["forward"]["rows"][rejecting["forward"]["rejected"][0]]
    expect(card.locator(".rejected").first).to_contain_text(f"({draft['drafter']})")


def drafts(page: Page) -> list[dict[str, Any]]:
    """The second lane's forwards that emitted something, each with the place of its stride."""
    script = """async () => {
        const { keptRuns } = await import("/playground/runs.js");
        return keptRuns().find(({ name }) => name.startsWith("Race, several")).forwards;
    }"""
    found = [each for each in page.evaluate(script) if each["forward"]["emitted"]]
    return [{"place": place, "forward": each["forward"]} for place, each in enumerate(found)]


def test_strides_are_walked_with_the_keyboard(page: Page) -> None:
    race(page, decoder="ngram", max_tokens=24)
    strides = page.locator("article.lane").first.locator(".stride")
    strides.first.focus()
    expect(page.locator("#card")).to_contain_text("Pass 1:")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#card")).to_contain_text("Pass 2:")
    page.keyboard.press("End")
    expect(page.locator("#card")).to_contain_text(f"Pass {strides.count()}:")


def test_whitespace_can_be_seen(page: Page) -> None:
    race(page, "List three colours, one a line.", decoder="ngram", max_tokens=32)
    assert page.locator(".stride .space").count() and page.locator(".stride .newline").count()
    dot = page.locator(".stride .space").first.evaluate("node => getComputedStyle(node).backgroundImage")
    sign = page.locator(".stride .newline").first.evaluate("node => getComputedStyle(node, '::before').content")
    assert "gradient" in dot and sign == '"↵"'


def test_a_race_can_be_stopped(page: Page, server: ProcessServer) -> None:
    dial(page, max_tokens=2000)
    page.fill("#race-prompt", "Write a very long story about the sea.")
    page.click("#race-start")
    page.wait_for_selector(".stride")
    page.click("#race-stop")
    expect(page.locator("#verdict")).to_contain_text("Stopped")
    assert 0 < page.locator("article.lane").first.locator(".token").count() < 2000
    expect(page.locator("#race-start")).to_be_enabled()
    with server.client() as client:
        until(lambda: "vllm:num_requests_running" in client.get("/metrics").text)
        until(lambda: running(client.get("/metrics").text) == 0)


def running(metrics: str) -> float:
    return float(re.findall(r"^vllm:num_requests_running\S* (\S+)$", metrics, re.M)[0])


def test_the_focus_is_never_lost(page: Page) -> None:
    dial(page, max_tokens=8)
    page.focus("#race-start")
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") in ("race-stop", "race-start")
    expect(page.locator("#race-stop")).to_be_disabled()
    assert page.evaluate("() => document.activeElement.id") == "race-start"
    dial(page, max_tokens=0)
    page.click("#race-start")
    page.focus("text=Dismiss")
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"


# The dials


def test_a_dial_changes_the_request_and_says_what_it_does(page: Page) -> None:
    sent = noted_request(page, "/playground/race", lambda: page.click("#race-start"))
    assert sent["stride"] == {"decoder": "auto"} and sent["temperature"] == 0 and "seed" not in sent
    page.click("#race-stop")
    dial(page, decoder="self", tolerance=0.3, k=4, temperature=0.7, seed=11, max_tokens=16)
    expect(page.locator("#dial-tolerance-effect")).to_contain_text("70 % as likely")
    expect(page.locator("#dial-threshold-effect")).to_contain_text("means nothing to the decoder self")
    expect(page.locator("#dial-threshold")).to_be_disabled()
    expect(page.locator("#race-start")).to_be_enabled()
    sent = noted_request(page, "/playground/race", lambda: page.click("#race-start"))
    assert sent["stride"] == {"decoder": "self", "tolerance": 0.3, "k": 4}
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0.7, 11, 16)
    expect(page.locator("#race-start")).to_be_enabled()
    dial(page, decoder="adaptive", threshold=0.5)
    sent = noted_request(page, "/playground/race", lambda: page.click("#race-start"))
    assert sent["stride"] == {"decoder": "adaptive", "threshold": 0.5, "k_max": 4}


def test_a_dial_beyond_its_bounds_is_refused_in_words(page: Page) -> None:
    dial(page, max_tokens=0)
    page.click("#race-start")
    expect(page.locator("#notice")).to_contain_text("Max tokens")
    assert not page.locator(".stride").count()


def test_every_preset_says_what_it_shows(page: Page) -> None:
    shown = set()
    for button in page.locator("#presets button").all():
        button.click()
        shown.add((page.input_value("#race-prompt"), page.inner_text("#preset-shows")))
    assert len(shown) == 5 and all(prompt and shows for prompt, shows in shown)


# Under the hood


def test_a_generation_is_stepped_through_forward_by_forward(page: Page) -> None:
    page.click("nav >> text=Under the hood")
    expect(page.locator("#hood")).to_contain_text("race")
    page.click("nav >> text=Race")
    race(page, decoder="ensemble", max_tokens=40)
    page.click("nav >> text=Under the hood")
    hood = page.locator("#hood")
    assert hood.locator("select option").count() == 2
    hood.locator("select").select_option(index=1)
    expect(hood).to_contain_text("forward 1 of")
    page.get_by_role("button", name="Next").click()
    expect(hood).to_contain_text("forward 2 of")
    assert hood.locator("svg").count() >= 3
    page.get_by_role("button", name="Last").click()
    for words in ("acceptance by depth", "tokens per forward"):
        assert words in hood.inner_text().lower()


# The chat


def say(page: Page, text: str) -> None:
    page.fill("#chat-text", text)
    page.keyboard.press("Enter")


def test_a_chat_has_a_history_and_can_say_it_again(page: Page) -> None:
    page.click("nav >> text=Chat")
    dial(page, max_tokens=16)
    say(page, "My name is Ada.")
    expect(page.locator("#chat-status")).to_contain_text("tokens in")
    first = page.locator(".messages .assistant .said").inner_text()
    sent = noted_request(page, "/v1/chat/completions", lambda: say(page, "What is my name?"))
    assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"] and sent["stride"]["trace"]
    expect(page.locator("#chat-again")).to_be_enabled()
    again = noted_request(page, "/v1/chat/completions", lambda: page.click("#chat-again"))
    assert again == sent
    expect(page.locator("#chat-again")).to_be_enabled()
    assert page.locator(".messages li").count() == 4
    assert page.locator(".messages .assistant .said").first.inner_text() == first
    page.click("#chat-new")
    assert not page.locator(".messages li").count()


def test_an_answer_can_be_stopped_and_the_chat_goes_on(page: Page) -> None:
    page.click("nav >> text=Chat")
    dial(page, max_tokens=2000)
    say(page, "Write a very long story about the sea.")
    page.wait_for_selector(".messages .stride")
    page.click("#chat-stop")
    expect(page.locator("#chat-status")).to_contain_text("stopped")
    dial(page, max_tokens=8)
    sent = noted_request(page, "/v1/chat/completions", lambda: say(page, "Go on."))
    assert len(sent["messages"]) == 3
    expect(page.locator("#chat-status")).to_contain_text("seed")


@pytest.mark.parametrize("language", ["curl", "Python"])
def test_a_request_that_was_copied_says_the_same(
    browser: Browser, server: ProcessServer, language: str, tmp_path: Path
) -> None:
    question = """It's "quoted": $HOME `x` \\n?"""
    with watched_page(browser, f"{server.url}/", permissions=["clipboard-read", "clipboard-write"]) as page:
        page.wait_for_selector("body[data-ready]")
        page.click("nav >> text=Chat")
        dial(page, max_tokens=12, decoder="ngram")
        say(page, question)
        expect(page.locator("#chat-status")).to_contain_text("tokens in")
        shown = "".join(page.locator(".messages .token:not(.ending)").all_inner_texts())
        page.click(f"#chat-copy >> text=Copy as {language}")
        page.wait_for_selector("#chat-copy >> text=Copied")
        copied = page.evaluate("() => navigator.clipboard.readText()")
    command = ["bash", "-c", copied] if language == "curl" else [sys.executable, "-c", copied]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ).stdout
    if language == "curl":
        chunks = [json.loads(line[5:]) for line in printed.splitlines() if line.startswith("data: {")]
        printed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    assert printed == shown


def test_what_failed_is_not_part_of_the_chat(browser: Browser, server: ProcessServer) -> None:
    with watched_page(browser, f"{server.url}/#chat", is_server_lost=True) as page:
        page.wait_for_selector("body[data-ready]")
        dial(page, max_tokens=8)
        say(page, "Hello!")
        expect(page.locator("#chat-status")).to_contain_text("seed")
        before = page.inner_text("#messages")
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json={}))
        page.click("#chat-again")
        expect(page.locator("#notice")).to_contain_text("takes no requests now")
        assert page.inner_text("#messages") == before
        say(page, "Still there?")
        expect(page.locator("#chat-text")).to_have_value("Still there?")
        assert page.inner_text("#messages") == before
        page.unroute("**/v1/chat/completions")
        sent = noted_request(page, "/v1/chat/completions", lambda: page.click("#chat-send"))
        assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "user"]


def test_without_a_clipboard_a_request_is_shown(page: Page) -> None:
    page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.click("#race-copy >> text=Copy as curl")
    assert page.input_value("#race-copy textarea").startswith("curl -sN http")


# Benchmarks


def open_report(page: Page, file: Path) -> Locator:
    """The view of benchmarks with this report."""
    page.click("nav >> text=Benchmarks")
    page.set_input_files("#bench-file", file)
    expect(page.locator("#bench")).to_contain_text(f"{file.name} is open.")
    return page.locator("#bench")


def test_a_bench_report_is_shown_as_its_figures_say(page: Page) -> None:
    bench = open_report(page, REPORT)
    figures = json.loads(REPORT.read_text())["figures"]
    script = "table => [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
    tables = [table.evaluate(script) for table in bench.locator("table").all()]
    assert tables[0] == [[f"{row['suite']} {row['subject']}", *row["cells"]] for row in figures["rows"]]
    charts = [chart["table"] for chart in figures["charts"]]
    assert tables[1:] == [table["rows"] for table in (figures["columns"], *charts, *figures["scenarios"])]
    drawn = bench.locator("figure.chart")
    for place, chart in enumerate(figures["charts"]):
        expect(drawn.nth(place)).to_contain_text(chart["title"])
        expect(drawn.nth(place)).to_contain_text(chart["reading"])
        assert drawn.nth(place).locator(".chart-scroll > svg").count() == len(chart["panels"])
    said = bench.locator("figure.chart").first.locator("text.value").all_text_contents()
    bars = [bar for panel in figures["charts"][0]["panels"] for bar in panel["bars"]]
    assert [text.split("x")[0] for text in said] == [f"{bar['value']:.2f}" for bar in bars]
    for words in (figures["summary"], "machine, processor", "stridelm bench --quick"):
        expect(bench).to_contain_text(words)
    assert not re.search("NaN|undefined|null", bench.inner_text())


def test_what_cannot_be_shown_is_told_in_a_sentence(page: Page, tmp_path: Path) -> None:
    entry = json.loads(REPORT.read_text())
    figures = entry["figures"]
    contents = {
        "stridelm bench --page FILE --out DIR": {name: entry[name] for name in entry if name != "figures"},
        "this page reads version 1": {**entry, "version": 2},
        "not a report": figures["rows"],
        "report.figures.rows[0].suite": {**entry, "figures": {**figures, "rows": [{"suite": 1}]}},
        "report.figures.charts is not": {**entry, "figures": {**figures, "charts": None}},
    }
    bench = open_report(page, REPORT)
    alert = bench.get_by_role("alert")
    for number, (said, content) in enumerate(contents.items()):
        other = tmp_path / f"{number}.json"
        other.write_text(json.dumps(content))
        page.set_input_files("#bench-file", other)
        expect(alert).to_contain_text(said)
        expect(alert).to_contain_text("The earlier report stays.")
    expect(bench.locator("figure.chart").first).to_be_visible()


def test_acceptance_is_counted_as_the_bench_counts_it(page: Page, language_model: LanguageModel) -> None:
    settings = language_model.check("ngram")
    sequence = language_model.sequence([1, 2, 3, 1, 2, 3, 1, 2], SamplingParams(max_tokens=60), settings)
    sequence.is_traced, sequence.alternatives = True, 1
    strides = list(language_model.engine.strides_of(sequence))
    vocabulary = Vocabulary(language_model.target.tokenizer)
    script = """async (forwards) => {
        const { acceptanceByDepth } = await import("/playground/hood_figures.js");
        return acceptanceByDepth(forwards.map((forward) => ({ forward })));
    }"""
    shown = page.evaluate(script, [traced(stride, 0, vocabulary) for stride in strides])
    drafted, accepted = by_depth(stride.trace for stride in strides if stride.trace)
    assert sum(accepted) and sum(accepted) < sum(drafted)
    assert tuple(each["drafted"] for each in shown) == drafted
    assert tuple(each["accepted"] for each in shown) == accepted


def test_steps_that_a_backend_runs_by_itself_are_named(browser: Browser) -> None:
    with (
        serve_in_thread(stepping_model()) as server,
        watched_page(browser, f"{server.url}/") as page,
    ):
        page.wait_for_selector("body[data-ready]")
        dial(page, decoder="self", max_tokens=40)
        page.fill("#race-prompt", PROMPT)
        page.click("#race-start")
        page.wait_for_selector("#verdict .same")
        expect(page.locator(".lane p.faint")).to_have_text(["ran by hash, own steps"] * 2)
        page.click("a[href='#hood']")
        page.locator("#hood").get_by_role("button", name="Last").click()
        hood = page.locator("#hood")
        expect(hood).to_contain_text("Steps that the backend runs by itself do not name alternatives.")
        expect(hood).to_contain_text("by a step of the backend's own")
        expect(hood.locator(".hood-figures")).to_contain_text("hash, own steps")
        hood.locator("summary").click()
        expect(hood.locator(".hood-rows")).to_contain_text("not told")
        assert not re.search("NaN|null|undefined", hood.inner_text())
        hood.get_by_role("button", name="First").click()
        expect(hood).not_to_contain_text("do not name alternatives")
        page.click("a[href='#chat']")
        page.fill("#chat-text", PROMPT)
        page.click("#chat-send")
        expect(page.locator("#chat-status")).to_contain_text("exact; ran by hash, own steps.")


def test_the_benchmarks_name_what_ran_and_what_broke_its_word(page: Page, tmp_path: Path) -> None:
    def changed(record: Record) -> Record:
        told = record.subject == "auto"
        answer = replace(record.answer, backend="gpu" if told else None, own_forwards=record.answer.forwards)
        quality = Quality(identical=False, departs_at=3) if told else Quality() if record.subject == "ngram" else SAME
        return replace(record, answer=answer, quality=quality)

    report = read_report(REPORT)
    report.records = [changed(record) for record in report.records if record.suite == "maths"]
    write_json(report, page_figures(report), tmp_path / "bench.json")
    bench = open_report(page, tmp_path / "bench.json")
    expect(bench.locator("td:text-is('gpu, own steps')")).to_have_count(1)
    expect(bench.locator(".bench-alarm")).to_have_text(["differs at token 3", "not compared"])
    expect(bench.get_by_role("note")).to_contain_text("auto on maths (differs at token 3)")
    said = bench.locator("figure.chart").first.locator("text.value").all_text_contents()
    assert [text.partition(" ")[2] for text in said] == ["differs", "", "?", ""]


# When things go wrong


def test_a_full_server_says_when_to_come_again(browser: Browser, server: ProcessServer) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=429, headers={"Retry-After": "3"}, json={"error": {"message": "too many"}})

    with watched_page(browser, f"{server.url}/", is_server_lost=True) as page:
        page.wait_for_selector("body[data-ready]")
        page.route("**/playground/race", refuse)
        page.click("#race-start")
        expect(page.locator("#notice")).to_contain_text("too many requests waiting. Try again in 3 s")
        page.click("text=Dismiss")
        expect(page.locator("#notice")).to_be_hidden()


def test_a_key_is_asked_for_and_taken(browser: Browser, roomy_model: LanguageModel) -> None:
    with (
        serve_in_thread(roomy_model, ServeSettings(port=0, grace=0, api_key=KEY)) as server,
        watched_page(browser, f"{server.url}/", is_server_lost=True) as page,
    ):
        expect(page.locator("#notice")).to_contain_text("wants an API key")
        assert not serious_findings(page)
        page.fill("#key", "schlüssel")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("cannot be an API key")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("does not take this API key")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("body[data-ready]")
        expect(page.locator("#key-form")).to_be_hidden()
        assert "identical" in race(page, decoder="ngram", max_tokens=16)
        assert KEY not in page.content()


# For everyone


@pytest.fixture
def small_report(tmp_path: Path) -> Path:
    """Every kind of table and chart, of two suites: axe-core looks at each cell."""
    report = read_report(REPORT)
    report.records = [record for record in report.records if record.suite in ("structured", "long")]
    write_json(report, page_figures(report), tmp_path / "bench.json")
    return tmp_path / "bench.json"


def test_nothing_serious_stands_in_the_way_of_those_who_do_not_see(
    browser: Browser, server: ProcessServer, small_report: Path
) -> None:
    with watched_page(browser, f"{server.url}/", color_scheme="light") as page:
        page.wait_for_selector("body[data-ready]")
        race(page, decoder="ensemble", max_tokens=16)
        page.locator(".stride").last.focus()
        found = {}
        for view in VIEWS:
            page.goto(f"{server.url}/#{view}")
            if view == "chat":
                dial(page, max_tokens=8)
                say(page, "Hello!")
                expect(page.locator("#chat-status")).to_contain_text("tokens in")
            elif view == "bench":
                open_report(page, small_report)
            found[view, "light"] = serious_findings(page)
            page.emulate_media(color_scheme="dark")
            found[view, "dark"] = serious_findings(page, "color-contrast")  # no other rule looks at colours
            page.emulate_media(color_scheme="light")
        assert not any(found.values()), found


def test_a_phone_is_wide_enough(browser: Browser, server: ProcessServer) -> None:
    phone = {"width": 360, "height": 740}
    with watched_page(browser, f"{server.url}/", viewport=phone, has_touch=True, is_mobile=True) as page:
        page.wait_for_selector("body[data-ready]")
        race(page, decoder="ensemble", max_tokens=16)
        for view in VIEWS:
            page.goto(f"{server.url}/#{view}")
            if view == "bench":
                expect(open_report(page, REPORT).locator("svg").nth(3)).to_be_visible()
            elif view == "hood":
                expect(page.locator(".hood-tree svg")).to_be_visible()
            assert page.evaluate("() => document.documentElement.scrollWidth") <= phone["width"], view


def test_the_link_that_skips_to_the_content_leaves_the_view_alone(page: Page) -> None:
    page.click("nav >> text=Chat")
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main" and page.url.endswith("#chat")


def test_a_long_answer_is_laid_out_in_blocks(page: Page) -> None:
    race(page, "List thirty animals, one a line.", decoder="ngram", max_tokens=96)
    blocks = page.locator("article.lane").first.locator(".block")
    lines = [block.inner_text() for block in blocks.all()]
    assert len(lines) > 1, "a line end after 64 strides begins a new one"
    texts = ["".join(lane.locator(".token").all_inner_texts()) for lane in page.locator("article.lane").all()]
    assert texts[0] == texts[1]


def test_the_theme_is_chosen_and_kept(page: Page) -> None:
    paper = "() => getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != before
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate(paper) != before


# The last of all: it ends the server that the others share.


def test_a_server_that_was_killed_is_reported(browser: Browser, server: ProcessServer) -> None:
    with watched_page(browser, f"{server.url}/", is_server_lost=True) as page:
        page.wait_for_selector("body[data-ready]")
        dial(page, max_tokens=2000)
        page.fill("#race-prompt", "Write a very long story about the sea.")
        page.click("#race-start")
        page.wait_for_selector(".stride")
        server.process.kill()
        expect(page.locator("#notice")).to_contain_text("went away in the middle of the answer")
        page.click("#race-start")
        expect(page.locator("#notice")).to_contain_text("does not answer")
        page.click("nav >> text=Chat")
        say(page, "Are you there?")
        expect(page.locator("#notice")).to_contain_text("stridelm serve")
