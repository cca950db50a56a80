"""All rules: repot's own, and those of plugins."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from repot.doctor.rule import Rule
from repot.errors import RuleUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

#: Where plugins name their modules of rules.
ENTRY_POINTS = "repot.doctor.rules"

_MODULES = ("twice", "lost", "stops", "security", "names", "move", "redis_server", "rabbitmq_server", "waivers")


def own_rules() -> dict[str, Rule]:
    """Repot's rules by id, in their order."""
    return _by_id(import_module(f"repot.doctor.rules.{name}") for name in _MODULES)


def all_rules() -> dict[str, Rule]:
    """Repot's rules, then those of installed plugins.

    Raises:
        RuleUnknown: a plugin cannot be loaded, or takes an id that is taken.
    """
    found = own_rules()
    for plugin in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: one.name):
        try:
            theirs = _by_id([plugin.load()])
        except Exception as error:
            # whatever a plugin's module raises on import
            message = f"the rules of the plugin {plugin.name!r} ({plugin.value}) cannot be loaded: {error}"
            raise RuleUnknown(message, hint="Mend or uninstall it.") from error
        taken = found.keys() & theirs.keys()
        if taken:
            message = f"the plugin {plugin.name!r} has a rule {min(taken)}, which exists already"
            raise RuleUnknown(message)
        found |= theirs
    return found


def rule_named(name: str) -> Rule:
    """The rule of this id.

    Raises:
        RuleUnknown: there is none.
    """
    rules = all_rules()
    found = rules.get(name.upper()) or rules.get(name)
    if found is None:
        raise _unknown(name)
    return found


def chosen(rules: dict[str, Rule], select: Iterable[str], ignore: Iterable[str]) -> dict[str, Rule]:
    """The rules whose ids begin with one of `select`, all when that is empty, less those of `ignore`.

    Raises:
        RuleUnknown: a word fits no rule.
    """
    wanted, unwanted = tuple(word.upper() for word in select), tuple(word.upper() for word in ignore)
    for word in (*wanted, *unwanted):
        if not any(rule.upper().startswith(word) for rule in rules):
            raise _unknown(word)
    return {
        name: rule
        for name, rule in rules.items()
        if (not wanted or name.upper().startswith(wanted)) and not name.upper().startswith(unwanted)
    }


def _by_id(modules: Iterable[ModuleType]) -> dict[str, Rule]:
    rules = [value for module in modules for value in vars(module).values() if isinstance(value, Rule)]
    return {rule.id: rule for rule in sorted(rules, key=lambda one: one.id)}


def _unknown(name: str) -> RuleUnknown:
    return RuleUnknown(f"there is no rule {name!r}", hint="`repot doctor rules` lists them.")
