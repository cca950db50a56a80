"""What machines get: JSON, SARIF by its schema, annotations; and what people get."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

from repot.doctor import registry
from repot.doctor.config import DoctorConfig, Waiver
from repot.doctor.reports import FORMATS, text
from repot.doctor.rule import WARNING, Finding, Location, rule
from repot.doctor.runner import NotJudged, Report, require_none
from repot.errors import CheckFailed, RuleUnknown
from support.judging import GOOD_REDIS, NEWEST, ROOT, RULES, amqp_options, facts, judge, rabbitmq, redis

pytestmark = NEWEST

PLANTED = "pl4nted-s3cret"
SCHEMA = Path(__file__).with_name("sarif-schema-2.1.0.json")
WAIVED = DoctorConfig(ROOT, waivers=(Waiver("RPT203", "", "counters: 100 %, no less", Location("pyproject.toml", 3)),))


@pytest.fixture
def report() -> Report:
    """Findings of each severity, with and without a place, one waived, some not judged, a password in the address."""
    url = f"redis://:{PLANTED}@redis.example.com/0"
    found = facts(redis(broker_url=url, task_acks_late=False, worker_soft_shutdown_timeout=5, task_max_retries=3))
    placed = tuple(replace(task, location=Location("shop/tasks.py", 12)) for task in found.tasks)
    return judge(replace(found, tasks=placed), "", WAIVED)


def test_the_schema_is_the_published_one() -> None:
    assert sha256(SCHEMA.read_bytes()).hexdigest() == "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"


def test_sarif_is_valid(report: Report) -> None:
    assert report.findings
    assert report.waived
    assert report.not_judged
    log = json.loads(FORMATS["sarif"]([report, judge(facts(amqp_options(confirm_publish=None)))]))
    Draft4Validator(json.loads(SCHEMA.read_text())).validate(log)


def test_sarif_without_findings_is_valid() -> None:
    log = json.loads(FORMATS["sarif"]([judge(facts(rabbitmq()))]))
    Draft4Validator(json.loads(SCHEMA.read_text())).validate(log)
    assert log["runs"][0]["results"] == []


def test_what_code_scanning_asks_for(report: Report) -> None:
    """GitHub refuses a whole file when one result has no place."""
    run = json.loads(FORMATS["sarif"]([report]))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert result["ruleId"] == rules[result["ruleIndex"]]["id"]
        location = result["locations"][0]["physicalLocation"]
        assert not location["artifactLocation"]["uri"].startswith("/")
        assert location["region"]["startLine"] >= 1
    waived = [result for result in run["results"] if result["suppressions"]]
    assert [result["ruleId"] for result in waived] == ["RPT203"]
    assert waived[0]["suppressions"][0]["justification"] == "counters: 100 %, no less"
    for one in rules:
        assert len(one["fullDescription"]["text"]) <= 1024
        assert one["help"]["text"]


def test_json_holds_everything(report: Report) -> None:
    (found,) = json.loads(FORMATS["json"]([report]))["applications"]
    assert len(report.findings) == len(found["findings"])
    assert found["waived"][0]["waiver"]["reason"] == "counters: 100 %, no less"
    assert {"Add --live."} == {one["remedy"] for one in found["not_judged"]}
    assert sum(found["summary"].values()) == len(found["findings"])
    unknown = next(one for one in found["findings"] if one["rule"] == "RPT502")
    assert unknown["setting"] == "task_max_retries"


def test_annotations_escape_what_github_would_read(report: Report) -> None:
    lines = FORMATS["github"]([report]).splitlines()
    assert len(report.findings) == len(lines)
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
    assert any(line.startswith("::notice file=shop/tasks.py,line=12,title=RPT110 ") for line in lines)
    assert "RPT203" not in "".join(lines)
    fake = replace(report.findings[0], finding=Finding("50 % of\nit", task="a,b"))
    (line,) = FORMATS["github"]([replace(report, findings=(fake,))]).splitlines()
    assert "a,b: 50 %25 of%0Ait%0A" in line


@pytest.mark.parametrize("form", [*FORMATS, "text"])
def test_no_password_anywhere(report: Report, form: str) -> None:
    shown = text.render([report], verbose=True) if form == "text" else FORMATS[form]([report])
    assert PLANTED not in shown
    assert "redis.example.com" in shown


def test_people_see_what_was_not_judged(report: Report) -> None:
    shown = text.render([report])
    assert "not judged: 19 rules (RPT221, RPT407, RPT701, RPT702, RPT703, ...). Add --live." in shown
    assert "1 waived" in shown
    assert "counters" not in shown
    assert "counters" in text.render([report], verbose=True)


def test_many_tasks_are_one_block() -> None:
    found = facts(redis(task_acks_late=False))
    many = tuple(replace(found.tasks[0], name=f"shop.task{number}") for number in range(200))
    shown = text.render([judge(replace(found, tasks=many), "RPT203")])
    assert "200 tasks (shop.task0, shop.task1, shop.task2, shop.task3, shop.task4, ...): is acknow" in shown
    assert shown.count("why:") == 1


def test_a_task_with_several_findings_is_one_task() -> None:
    """Sends of one task have a place each."""
    report = judge(facts(redis(task_acks_late=False)), "RPT203")
    (one,) = report.findings
    names = [f"shop.task{number}" for number in range(3)]
    same = [replace(one, finding=replace(one.finding, task=name)) for name in names]
    shown = text.render([replace(report, findings=(one,) * 4)])
    assert shown.count("shop.bill: is acknowledged") == 4
    shown = text.render([replace(report, findings=(*same, *same))])
    assert "3 tasks (shop.task0, shop.task1, shop.task2): is acknowledged" in shown


@pytest.mark.parametrize(("fail_on", "fails"), [("error", False), ("warning", True)])
def test_what_fails(fail_on: str, *, fails: bool) -> None:
    found = [judge(facts(redis(broker_pool_limit=0)))]
    if fails:
        with pytest.raises(CheckFailed, match="1 finding"):
            require_none(found, fail_on)
    else:
        require_none(found, fail_on)


def test_rules_are_chosen_by_their_beginning() -> None:
    assert {"RPT101"} == set(registry.select_rules(RULES, ["RPT101"], []))
    assert {"RPT801", "RPT802"} <= set(registry.select_rules(RULES, ["RPT8"], ["RPT803"]))
    assert "RPT803" not in registry.select_rules(RULES, ["RPT8"], ["RPT803"])
    with pytest.raises(RuleUnknown, match="RPT99"):
        registry.select_rules(RULES, ["RPT99"], [])


def test_a_rule_that_breaks_silences_no_other() -> None:
    @rule("SHOP1", "Broken", WARNING, fix="x", evidence="y")
    def broken(facts: Any) -> Any:
        """It breaks."""
        raise KeyError(facts.app)

    from repot.doctor.runner import run_rules

    report = run_rules(facts(GOOD_REDIS), {"SHOP1": broken, **RULES}, DoctorConfig(ROOT), RULES)
    failed = [one for one in report.not_judged if one.rule.id == "SHOP1"]
    assert [NotJudged(broken, "the rule fails: KeyError('shop')", "Report it to the author of the rule.")] == failed
    assert report.findings == ()


def test_every_rule_has_title_reason_fix_and_evidence() -> None:
    for one in RULES.values():
        assert one.reason.endswith("."), one.id
        assert one.fix, one.id
        assert one.evidence, one.id
        assert one.id.startswith("RPT")
        assert len(one.title) < 100, one.id
