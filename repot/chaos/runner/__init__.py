"""Run cases: brokers, workers, the fault, the observation and the verdict."""
