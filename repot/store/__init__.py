"""Records, rules that decide what becomes of one, and three ways to apply a rule.

A *rule* (`rules`) is a pure function of the record under a key, None without one, and of the store's time. It
returns the record to store, None to leave it, and an answer. A way reads, asks the rule, and writes so that no other
change comes in between: `hashes` swaps on Redis, `rows` locks a row of a database, `memory` holds a process' lock.
"""
