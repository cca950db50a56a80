"""Instruments that an experiment puts into a worker: failpoints, the journal, the recorder, synthetic tasks."""
