"""Measure this machine, or a job of many processes, and write it down as a cluster file.

`make.py` is the main path: `job` says who runs with whom, `memory` and `disk` time rows,
`links` times messages, `fit` turns times into the figures that the cost model reads.
"""
