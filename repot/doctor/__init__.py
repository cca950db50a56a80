"""Judging an application: facts gathered once, rules over them, a report.

A plugin adds rules of its own with an entry point in the group `repot.doctor.rules`
that names a module; every `Rule` in it is taken::

    from repot.doctor import ERROR, Facts, Finding, rule

    @rule("SHOP1", "Reports without a time limit", ERROR, fix="time_limit=600", evidence="https://...")
    def reports_without_a_limit(facts: Facts):
        '''A report that hangs holds its process for ever. ...'''
        ...
"""

from repot.doctor.facts import Facts
from repot.doctor.rule import BOTH, ERROR, INFO, RABBITMQ, REDIS, WARNING, Finding, Rule, Severity, rule

__all__ = [
    "BOTH",
    "ERROR",
    "INFO",
    "RABBITMQ",
    "REDIS",
    "WARNING",
    "Facts",
    "Finding",
    "Rule",
    "Severity",
    "rule",
]
