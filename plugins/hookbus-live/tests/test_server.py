"""Tests who reaches the server of a page, and that nothing changes by looking."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_pages import Page, page_of, training

METRIC = '{"step": 1, "time": 1700000000.0, "loss": 0.5}\n'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a run that lives as long as the tests need it."""
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with training(directory=None) as page:
            yield page


def headers(page: Page, **changed: str | None) -> dict[str, str]:
    """Return the headers of a request of the page, some of them changed or left out."""
    given: dict[str, str | None] = {
        "Host": f"127.0.0.1:{page.port}",
        "Origin": page.base,
        "Authorization": f"Bearer {page.token}",
        "Content-Type": "application/json",
    }
    given |= {name.replace("_", "-"): value for name, value in changed.items()}
    return {name: value for name, value in given.items() if value is not None}


STOP = json.dumps({"action": "stop"})


def test_the_page_needs_no_token_and_tells_nothing(page):
    """It asks for its data, with the token."""
    status, body, _ = page.send("/", {})

    assert status == 200
    assert b"<title>hookbus</title>" in body
    assert page.token.encode() not in body


@pytest.mark.parametrize("given", [None, "", "Bearer ", "Bearer wrong", "Basic x"])
@pytest.mark.parametrize("path", ["/api/runs", "/api/series?name=loss", "/api/nothing"])
def test_nothing_is_told_without_the_token(page, path, given):
    """Also of what does not exist."""
    status, body, _ = page.send(path, headers(page, Authorization=given))

    assert status == 401
    assert "open the address from the log" in json.loads(body)["error"]


def test_a_token_in_the_address_or_in_a_cookie_does_not_count(page):
    """Browsers would send a cookie for other sites as well."""
    cookie = headers(page, Authorization=None, Cookie=f"token={page.token}")

    assert page.send(f"/api/runs?token={page.token}", {})[0] == 401
    assert page.send("/api/runs", cookie)[0] == 401


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1.evil:{port}", ""],
)
@pytest.mark.parametrize("path", ["/", "/api/runs"])
def test_another_name_is_refused(page, path, host):
    """A site that has its own name lead to this machine (DNS rebinding) gets nothing."""
    status, body, _ = page.send(path, headers(page, Host=host.format(port=page.port)))

    assert status == 421
    assert "open the address from the log" in json.loads(body)["error"]


def test_this_machine_has_two_names(page):
    """Both are as good."""
    given = headers(page, Host=f"localhost:{page.port}", Origin=None)

    assert page.send("/api/runs", given)[0] == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "x"],
)
def test_a_page_of_another_site_is_refused(page, origin):
    """With the right token as well."""
    given = headers(page, Origin=origin.format(port=page.port))

    assert page.send("/api/runs", given)[0] == 403
    assert page.send("/api/requests", given, STOP)[0] == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_no_other_method_than_post_asks_for_something(page, method):
    """An action in an address does nothing."""
    status, _, _ = page.send(
        "/api/requests?action=stop", headers(page), STOP, method=method
    )

    assert status == 405
    assert page.details()["requests"] == []


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_form_of_another_site_is_refused(page, kind):
    """Browsers send these types without asking the server first."""
    given = headers(page, Content_Type=kind)

    assert page.send("/api/requests", given, STOP)[0] == 415
    assert page.details()["requests"] == []


def test_a_request_without_an_end_is_refused(page):
    """It would fill the memory of the training."""
    given = headers(page, Content_Length="999999999")

    assert page.send("/api/requests", given, "")[0] == 413


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "no JSON"),
        ("[]", "a JSON object"),
        ("{}", "there is no action None"),
        ('{"action": "explode"}', "there is no action 'explode'"),
        ('{"action": "assign", "value": 1}', "name the variable"),
        ('{"action": "assign", "name": "a", "value": "1"}', "value has to be a number"),
        ('{"action": "assign", "name": "a", "value": true}', "value has to be a number"),
        ('{"action": "assign", "name": "a", "value": NaN}', "a finite number"),
        ('{"action": "follow", "name": "a", "to": 1, "steps": 0.5}', "a whole number"),
        (
            '{"action": "follow", "name": "a", "to": 1, "steps": 5, "shape": "x"}',
            "there is no schedule 'x'",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(page, body, why):
    """The answer says what is wrong."""
    status, answer, _ = page.send("/api/requests", headers(page), body)

    assert status == 400
    assert why in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/api/series?run=x&name=loss", "there is no training 'x'"),
        ("/api/details", "there is no training None"),
        ("/api/series?axis=moon", "there is no such axis"),
        ("/api/series?width=0", "width from 1"),
        ("/api/series?smooth=1", "smooth has to be"),
        ("/api/series?low=a", "'a' is no number"),
        ("/api/series?low=inf", "no finite number"),
        ("/hook.py", "there is no such page"),
        ("/..%2Fhook.py", "there is no such page"),
    ],
)
def test_a_wrong_address_is_refused(page, path, why):
    """The answer says what is wrong."""
    status, answer, _ = page.send(path, headers(page))

    assert status in (400, 404)
    assert why in json.loads(answer)["error"]


def test_every_answer_forbids_what_comes_from_elsewhere(page):
    """Also those that refuse."""
    for path in ("/", "/app.js", "/api/runs", "/api/nothing"):
        for given in ({}, headers(page), headers(page, Host="evil")):
            found = page.send(path, given)[2]
            assert found["content-security-policy"].startswith("default-src 'none';")
            assert "unsafe" not in found["content-security-policy"]
            assert found["x-content-type-options"] == "nosniff"
            assert found["referrer-policy"] == "no-referrer"
            assert found["access-control-allow-origin"] is None


def test_the_files_of_the_page_load_nothing_from_elsewhere():
    """No address of another machine is in them, but for that of the license."""
    import hookbus_live

    folder = Path(hookbus_live.__file__).parent / "page"
    own = [path for path in folder.iterdir() if "uplot" not in path.name]
    for path in own:
        found = re.findall(r"https?://[^\s\"']+", path.read_text("utf-8"))
        assert [each for each in found if "www.w3.org" not in each] == [], path


def test_what_is_known_is_not_sent_again(page):
    """An answer that has not changed is empty."""
    given = headers(page)
    _, _, found = page.send("/api/details?run=training", given)
    query = "/api/series?run=training&name=no-such-name&low=0&high=1"
    tag = page.send(query, given)[2]["etag"]

    assert found["etag"]
    assert tag


def test_a_page_for_reading_takes_no_request():
    """Looking is allowed."""
    with training("--live-read-only", directory=None) as page:
        assert page.get("/api/runs")["read_only"] is True
        assert "--live-read-only" in page.ask(action="stop")["error"]
        assert page.run()["state"] == "running"


@pytest.mark.long
def test_the_page_of_files_takes_no_request(tmp_path):
    """There is no training that could do it."""
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/metrics.jsonl").write_text(METRIC)
    with page_of(["view", "runs"]) as page:
        assert "no training listens" in page.ask(action="stop")["error"]
