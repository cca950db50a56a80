"""All rules: those in `repot/doctor/rules/`, and those of plugins."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from repot.doctor import rules
from repot.doctor.rule import Rule
from repot.errors import RuleUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

#: The entry-point group in which plugins name their modules of rules.
ENTRY_POINTS = "repot.doctor.rules"


def own_rules() -> dict[str, Rule]:
    """Return repot's rules by id: every `Rule` in a module of `repot/doctor/rules/`."""
    return _by_id(import_module(f"{rules.__name__}.{found.name}") for found in iter_modules(rules.__path__))


def all_rules() -> dict[str, Rule]:
    """Return repot's rules, then those of installed plugins.

    Raises:
        RuleUnknown: a plugin cannot be loaded, or uses the id of another rule.
    """
    rules_by_id = own_rules()
    for plugin in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: one.name):
        try:
            rules = _by_id([plugin.load()])
        except Exception as error:
            # any error of a plugin's module on import
            message = f"the rules of the plugin {plugin.name!r} ({plugin.value}) cannot be loaded: {error}"
            raise RuleUnknown(message, hint="Fix or uninstall the plugin.") from error
        taken = rules_by_id.keys() & rules.keys()
        if taken:
            message = f"the plugin {plugin.name!r} has a rule {min(taken)}, which exists already"
            raise RuleUnknown(message)
        rules_by_id |= rules
    return rules_by_id


def get_rule(name: str) -> Rule:
    """Return the rule with an id.

    Raises:
        RuleUnknown: no rule has this id.
    """
    known = all_rules()
    found = known.get(name.upper()) or known.get(name)
    if found is None:
        raise _unknown(name)
    return found


def select_rules(known: dict[str, Rule], select: Iterable[str], ignore: Iterable[str]) -> dict[str, Rule]:
    """Return the rules whose ids start with one of `select` (all if empty), without those of `ignore`.

    Raises:
        RuleUnknown: a prefix matches no rule.
    """
    wanted, unwanted = tuple(prefix.upper() for prefix in select), tuple(prefix.upper() for prefix in ignore)
    for prefix in (*wanted, *unwanted):
        if not any(rule.upper().startswith(prefix) for rule in known):
            raise _unknown(prefix)
    return {
        name: rule
        for name, rule in known.items()
        if (not wanted or name.upper().startswith(wanted)) and not name.upper().startswith(unwanted)
    }


def _by_id(modules: Iterable[ModuleType]) -> dict[str, Rule]:
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Rule)]
    return {rule.id: rule for rule in sorted(found, key=lambda one: one.id)}


def _unknown(name: str) -> RuleUnknown:
    return RuleUnknown(f"there is no rule {name!r}", hint="`repot doctor rules` lists them.")
