"""The rules, one module for each kind of harm; `repot/doctor/registry.py` finds them here."""
