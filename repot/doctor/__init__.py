"""The doctor: collect the facts of an application, run the rules over them, report.

A plugin adds rules with an entry point in the group `repot.doctor.rules` that names a module; every `Rule` in that
module is run (docs/write-a-rule.md)::

    from repot.doctor import ERROR, Facts, Finding, rule

    @rule("SHOP1", "A report has no time limit", ERROR, fix="time_limit=600", evidence="https://...")
    def reports_without_a_limit(facts: Facts):
        '''A report that hangs blocks its process for ever. ...'''
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
